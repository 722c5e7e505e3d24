"""Dynamo's compilations: made quicker, and with less code before each call of a graph."""

from __future__ import annotations

import contextlib

from torch._dynamo import config
from torch._dynamo.callback import callback_handler
from torch._dynamo.graph_bytecode_inputs import (
    index_to_bytecode_constructor,
    reset_user_object_tracking,
)
from torch._dynamo.symbolic_convert import tls
from torch._dynamo.variables.lazy import LazyVariableTracker

from npu_command.interpreter import collector_paused

__all__ = ["shorten_call", "watch_compilations"]

# Left when dynamo's compilation ends.
_compilation = contextlib.ExitStack()


def watch_compilations() -> None:
    """Pauses the garbage collector in each later compilation of dynamo, for any backend.

    `torch._dynamo.reset` undoes it.
    """
    if _started not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_started)
        callback_handler.register_end_callback(_ended)


def _started(_: object) -> None:
    _compilation.enter_context(collector_paused())


def _ended(_: object) -> None:
    _compilation.close()


def shorten_call() -> None:
    """Shortens the code that dynamo makes for the call of the graph that it compiles now.

    It omits the range that torch's profiler would show before each graph, and the lookup of the
    current stream, which dynamo adds if torch has an accelerator, unless the traced code used it.
    """
    translator = getattr(tls, "current_tx", None)
    if translator is None:  # the graph is not from dynamo
        return
    _compilation.enter_context(config.patch(record_runtime_overhead=False))
    streams = translator.symbolic_stream_state.cur_stream_stack
    is_unused = all(
        isinstance(one, LazyVariableTracker) and not one.is_realized() for one in streams
    )
    if is_unused and len(index_to_bytecode_constructor) == len(streams) == 1:
        reset_user_object_tracking()
