"""Graph capture of ``torch.npu``: records a step's programs once and replays them.

Names follow ``torch.cuda.graphs``. The record is native (csrc/graph).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.utils import _pytree

from npu_runtime import _C
from npu_runtime.errors import InputError
from npu_runtime.npu.streams import StreamContext
from npu_runtime.public_calls import public_call

__all__ = [
    "NPUGraph",
    "follows_weights",
    "graph",
    "graph_pool_handle",
    "is_capture_following",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "outside_capture",
]

PoolId = tuple[int, int]

_NEW_POOL = (0, 0)
_MODES = ("global", "thread_local", "relaxed")


class NPUGraph:
    """The programs of a step, bound to fixed tensors.

    Capture a step that runs compiled programs (``torch.compile(backend="npu")`` models, fused ops)
    on tensors that you keep. To run it on other data, copy the data into those tensors and call
    :meth:`replay`, which binds, checks and allocates nothing. Host kernels cannot be captured: they
    raise during the capture.

    Compiled programs hold weights as they were, packed for the device. A weight that is changed
    after the capture, in place or by another in ``.data``, makes :meth:`replay` an error that names
    it. Writes without a version count, such as ``weight.data.mul_(2)``, and replaced parameters are
    not detected: the graph tracks tensors, not modules.

    Args:
        keep_graph: ignored; accepted for compatibility.
        weights: ``"refuse"`` for the error, or ``"follow"`` for programs that read the weights at
            each replay, which is slower. A model compiled with ``backend="npu"`` then reads them so
            outside the graph too.

    Raises:
        InputError: ``weights`` has another value (code ``capture-weights``).
    """

    def __init__(self, keep_graph: bool = False, *, weights: str = "refuse") -> None:
        self._native = _C.Graph(follows_weights("npu.NPUGraph", weights))

    @public_call
    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Starts to record this thread's programs, which also run.

        Args:
            pool: memory pool of the capture: the id of another graph's pool or of
                :func:`graph_pool_handle`; by default a new pool.
            capture_error_mode: ``"global"``, ``"thread_local"`` or ``"relaxed"``. All have the
                same effect: a capture follows one thread and blocks no other.
            check_input_liveness: ignored; a graph keeps its inputs alive.

        Raises:
            InputError: this thread already captures, the graph holds a capture, or the mode is
                invalid (code ``capture-state``).
        """
        if capture_error_mode not in _MODES:
            raise InputError(
                f"npu.NPUGraph: `capture_error_mode` must be one of {', '.join(_MODES)}; "
                f'got {capture_error_mode!r}. Omit it for "global".',
                code="capture-state",
            )
        self._native.capture_begin(_NEW_POOL if pool is None else pool)

    def capture_end(self) -> None:
        """Ends the recording."""
        self._native.capture_end()

    def instantiate(self) -> None:
        """Does nothing: a capture needs no instantiation."""

    def replay(self) -> None:
        """Runs the recorded programs, in order, on the current stream.

        Raises:
            InputError: a weight of a program has changed since the capture, or a tensor has moved
                (code ``capture-stale``; nothing was run), or there is no capture
                (``capture-state``).
        """
        self._native.replay()

    def reset(self) -> None:
        """Discards the recording and releases its memory."""
        self._native.reset()

    def pool(self) -> PoolId:
        """Returns the id of the capture's memory pool, for another graph to share.

        Raises:
            InputError: no capture was started (code ``capture-state``).
        """
        return self._native.pool()

    def enable_debug_mode(self) -> None:
        """Does nothing: :meth:`debug_dump` always works."""

    @public_call
    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Writes one line for each program: its name, and the tensors that it reads and writes."""
        Path(debug_path).write_text(self._native.describe(), encoding="utf-8")

    def __len__(self) -> int:
        """Number of recorded programs."""
        return len(self._native)


class graph:
    """Captures the body of ``with`` into a graph.

    Args:
        npu_graph: a new or reset graph.
        pool: as for ``NPUGraph.capture_begin``.
        stream: stream to capture on; the current one by default.
        capture_error_mode: as for ``NPUGraph.capture_begin``.
        enable_annotations: ignored; programs keep their names.
        check_input_liveness: ignored; a graph keeps its inputs alive.
    """

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        self._graph = npu_graph
        self._pool = pool
        self._mode = capture_error_mode
        self._context = StreamContext(stream)

    def __enter__(self) -> NPUGraph:
        self._context.__enter__()
        try:
            self._graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._context.__exit__()
            raise
        return self._graph

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._graph.capture_end()
            if kind is not None:
                self._graph.reset()
        finally:
            self._context.__exit__(kind, error, trace)


def graph_pool_handle() -> PoolId:
    """Returns the id of a new memory pool, which several graphs can share."""
    return _C.new_memory_pool_id()


@contextlib.contextmanager
def outside_capture() -> Iterator[None]:
    """Suspends the capture for work that is not replayed, such as compiling a program.

    In the body, host kernels may run, and memory comes from the general pool. Without a capture, it
    has no effect.
    """
    native = _C.capturing_graph()
    if native is None:
        yield
        return
    native.pause()
    try:
        yield
    finally:
        native.resume()


def is_capture_following() -> bool:
    """Whether this thread captures a graph with programs that must hold no weights."""
    native = _C.capturing_graph()
    return native is not None and native.follows_weights


def is_current_stream_capturing() -> bool:
    """Whether this thread captures a graph."""
    return _C.is_capturing()


Graphable = torch.nn.Module | Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]


def make_graphed_callables(
    callables: Graphable | tuple[Graphable, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
    *,
    weights: str = "refuse",
) -> Any:
    """Returns callables that replay captured forward and backward passes.

    Inputs are copied into the capture's inputs; results are valid until the next call.
    A module is changed in place: its ``forward`` replays while it is in the mode (training or
    evaluation) of the capture.

    Args:
        callables: a module or function, or a tuple of them in the order in which they will run.
        sample_args: the arguments of the capture, tensors on npu whose shapes, dtypes and
            ``requires_grad`` are those of later calls; a tuple of such tuples for several
            callables.
        num_warmup_iters: number of passes before the capture, which compile the programs.
        allow_unused_input: whether an input may be unused; its gradient is None.
        pool: memory pool of the captures, as for ``NPUGraph.capture_begin``.
        weights: handling of changed weights, as for ``NPUGraph``. It affects inference only:
            training reads the weights in each pass.

    Raises:
        InputError: a module has hooks or trainable buffers, an argument is not an npu tensor, or
            autocast caches casts (code ``graphed-callable``), or ``weights`` is invalid
            (``capture-weights``). From a call: a weight has changed (``capture-stale``).
        RuntimeError: a pass has an op on the host (``capture-host-op``).
    """
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        _refuse("autocast must not keep casts of weights", "Pass cache_enabled=False to autocast")
    many = callables if isinstance(callables, tuple) else (callables,)
    arguments = sample_args if isinstance(callables, tuple) else (sample_args,)
    shared = _C.new_memory_pool_id() if pool is None else pool
    follows = follows_weights("torch.npu.make_graphed_callables", weights)
    passes = [
        _Passes(function, given, num_warmup_iters, allow_unused_input, follows)
        for function, given in zip(many, arguments, strict=True)
    ]
    for one in passes:
        one.warm_up()
    # In the order in which they will run, as the captures may share memory.
    for one in passes:
        one.capture_forward(shared)
    for one in reversed(passes):
        one.capture_backward(shared)
    graphed = tuple(one.replaying() for one in passes)
    return graphed if isinstance(callables, tuple) else graphed[0]


def follows_weights(subject: str, weights: str) -> bool:
    """Whether a captured graph follows its weights, from the argument `weights`.

    Raises:
        InputError: [capture-weights] for an invalid value.
    """
    if not isinstance(weights, str) or weights not in ("refuse", "follow"):
        raise InputError(
            f'{subject}: `weights` must be "refuse" or "follow", got {weights!r}. '
            "Omit it for an error when one changes.",
            code="capture-weights",
        )
    return weights == "follow"


def _refuse(rule: str, advice: str) -> None:
    raise InputError(
        f"torch.npu.make_graphed_callables: {rule}. {advice}.", code="graphed-callable"
    )


class _Passes:
    """The captured passes of one callable, with their tensors."""

    def __init__(
        self,
        function: Graphable,
        arguments: tuple[Any, ...],
        warm_ups: int,
        allow_unused: bool,
        follows: bool,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.warm_ups = warm_ups
        self.allow_unused = allow_unused
        self.forward = _C.Graph(follows)
        self.backward = _C.Graph(follows)
        self.user_inputs: Tensors = tuple(_pytree.arg_tree_leaves(*arguments))
        self.parameters: Tensors = ()
        self._check()
        self.inputs: Tensors = self.user_inputs + self.parameters
        self.outputs: Tensors = ()
        self.output_spec: Any = None
        self.output_gradients: tuple[torch.Tensor | None, ...] = ()
        self.input_gradients: tuple[torch.Tensor | None, ...] = ()

    def _check(self) -> None:
        for value in self.user_inputs:
            if not isinstance(value, torch.Tensor) or value.device.type != "npu":
                where = value.device if isinstance(value, torch.Tensor) else type(value).__name__
                _refuse(
                    f"`sample_args` must be tensors on npu, got one on {where}"
                    if isinstance(value, torch.Tensor)
                    else f"`sample_args` must be tensors on npu, got {where}",
                    "Bind other arguments with functools.partial",
                )
        if not isinstance(self.function, torch.nn.Module):
            return
        module = self.function
        self.parameters = tuple(module.parameters())
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            _refuse("a module must have no hooks yet", "Register them on the returned module")
        if any(buffer.requires_grad for buffer in module.buffers()):
            _refuse("buffers must not require grad", "Make them parameters")

    def warm_up(self) -> None:
        """Runs both passes, so that nothing is compiled while they are captured."""
        for _ in range(self.warm_ups):
            outputs = tuple(_pytree.tree_leaves(self.function(*self.arguments)))
            gradients = tuple(torch.zeros_like(o) if o.requires_grad else None for o in outputs)
            self._gradients(outputs, gradients)
        torch.accelerator.synchronize()

    def capture_forward(self, pool: PoolId) -> None:
        with _Capture(self.forward, pool):
            result = self.function(*self.arguments)
        leaves, self.output_spec = _pytree.tree_flatten(result)
        self.outputs = tuple(leaves)
        self.output_gradients = tuple(
            torch.zeros_like(o) if o.requires_grad else None for o in self.outputs
        )

    def capture_backward(self, pool: PoolId) -> None:
        with _Capture(self.backward, pool):
            found = iter(self._gradients(self.outputs, self.output_gradients))
        has_gradients = any(gradient is not None for gradient in self.output_gradients)
        self.input_gradients = tuple(
            next(found) if has_gradients and given.requires_grad else None for given in self.inputs
        )

    def _gradients(
        self, outputs: Tensors, gradients: tuple[torch.Tensor | None, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """Computes the inputs' gradients on this thread, which captures."""
        inputs = tuple(given for given in self.inputs if given.requires_grad)
        wanted = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
        if not wanted or not inputs:
            return ()
        with torch.autograd.set_multithreading_enabled(False):
            found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
                tuple(o for o, _ in wanted),
                inputs,
                tuple(g for _, g in wanted),
                allow_unused=self.allow_unused,
            )
        return found

    def replaying(self) -> Graphable:
        """Returns the replaying callable."""
        replay = _replaying_function(self)
        if not isinstance(self.function, torch.nn.Module):
            return replay
        module, mode, original = self.function, self.function.training, self.function.forward

        def forward(*arguments: Any, **named: Any) -> Any:
            if module.training == mode:
                return replay(*arguments, **named)
            return original(*arguments, **named)

        module.forward = forward
        return module


class _Capture:
    """Captures the body of ``with`` into a native graph, which is reset when the body raises."""

    def __init__(self, native: _C.Graph, pool: PoolId) -> None:
        self.native = native
        self.pool = pool

    def __enter__(self) -> None:
        self.native.capture_begin(self.pool)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.native.capture_end()
        if kind is not None:
            self.native.reset()


def _replaying_function(passes: _Passes) -> Callable[..., Any]:
    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Tensors:
            for captured, given in zip(passes.user_inputs, inputs, strict=False):
                if captured.data_ptr() != given.data_ptr():
                    captured.copy_(given)
            passes.forward.replay()
            return tuple(output.detach() for output in passes.outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            for captured, given in zip(passes.output_gradients, gradients, strict=True):
                if captured is not None and captured.data_ptr() != given.data_ptr():
                    captured.copy_(given)
            passes.backward.replay()
            return tuple(
                None if gradient is None else gradient.detach()
                for gradient in passes.input_gradients
            )

    def replay(*arguments: Any) -> Any:
        inputs = (*_pytree.arg_tree_leaves(*arguments), *passes.parameters)
        results = Replay.apply(*inputs)  # type: ignore[no-untyped-call]
        return _pytree.tree_unflatten(results, passes.output_spec)

    return replay
