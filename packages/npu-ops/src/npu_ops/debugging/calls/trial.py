"""One call made again on the CPU from what its arguments and its random stream were before it."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.calls.call import Call
from npu_ops.debugging.calls.snapshot import Snapshot, is_plain

__all__ = ["Outcome", "Trial", "below_autograd", "device_state", "set_device_state"]

Prepare = Callable[[Sequence[torch.Tensor]], None]

# The CPU's random stream is the process's: one call at a time borrows it.
_stream = threading.RLock()
# Ops that reach beyond their tensors, into all of a storage.
_WHOLE = ("aten::as_strided", "aten::set_", "aten::resize")


@dataclass(frozen=True)
class Outcome:
    """What a call gave.

    Attributes:
        args: positional arguments, as they are after it.
        kwargs: arguments by name, the same.
        results: what it returned.
        homes: what the strided tensors among the arguments lay in before it, one each.
        state: of the random stream after it; None for a device without one.
        error: what it raised; None if it ended well.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    homes: tuple[torch.UntypedStorage, ...]
    state: torch.Tensor | None
    error: Exception | None = None

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if _is_tensor(leaf)]


class Trial:
    """A call with copies of its arguments and of its device's random state, taken before it runs.

    Attributes:
        call: the call.
        before: its arguments, as `(args, kwargs)`.
        state: of its device's random stream.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        is_whole = call.op._schema.name.startswith(_WHOLE)
        self.before = Snapshot.take((call.args, call.kwargs), is_whole=is_whole)
        self.state = device_state(call.device)

    def on_host(self, *, is_wide: bool = False, prepare: Prepare | None = None) -> Outcome:
        """Makes the call on the CPU with the same random stream; the process's own is kept.

        Args:
            is_wide: whether in float64 instead of the arguments' dtypes.
            prepare: changes the copies of the tensors among the arguments before the call.
        """
        args, kwargs = self.before.restore("cpu", is_wide=is_wide)
        homes = _homes(args, kwargs)
        with _stream, below_autograd(self.call), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the device's own call says it
            kept = torch.get_rng_state()
            try:
                if self.state is not None:
                    torch.set_rng_state(self.state)
                if prepare is not None:
                    prepare([leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)])
                results = self.call.op(*args, **kwargs)
                return Outcome(args, kwargs, results, homes, torch.get_rng_state())
            except Exception as error:  # noqa: BLE001  # a finding, told by whoever asked
                return Outcome(args, kwargs, None, homes, None, error)
            finally:
                torch.set_rng_state(kept)

    def on_device(self) -> Outcome:
        """Runs the call itself, where its arguments are; what it raises is in the outcome."""
        args, kwargs = self.call.args, self.call.kwargs
        homes = _homes(args, kwargs)
        try:
            results = self.call.op(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the tool raises it again
            return Outcome(args, kwargs, None, homes, None, error)
        return Outcome(args, kwargs, results, homes, device_state(self.call.device))


@contextmanager
def below_autograd(call: Call) -> Iterator[None]:
    """Where a call came from: autograd records nothing more, though kernels see whether it does."""
    with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(call.is_grad_enabled):
        yield


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _homes(args: Any, kwargs: Any) -> tuple[torch.UntypedStorage, ...]:
    return tuple(leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if is_plain(leaf))


def device_state(device: torch.device) -> torch.Tensor | None:
    """The state of a device's random stream, which on npu is of the CPU's format."""
    if device.type == "cpu":
        return torch.get_rng_state()
    module = torch.get_device_module(device)
    return module.get_rng_state(device) if hasattr(module, "get_rng_state") else None


def set_device_state(device: torch.device, state: torch.Tensor) -> None:
    """Sets the state of a device's random stream."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
