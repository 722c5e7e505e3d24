"""Child process: draws calls of an op, runs each on the CPU and on npu, and reports.

It reports each step before running it, so that the parent knows the call that crashed the child.
"""

from __future__ import annotations

import functools
import resource
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_command.children import Say, serve
from npu_ops.op_conformance.comparison import difference, on_cpu, outcome, placement
from npu_ops.op_conformance.fuzz.call import Call, is_comparable, is_undefined, place

__all__ = ["main"]

_REFUSAL = "[argument-contract]"
_MEMORY = 3 << 30  # memory limit of a call, on the CPU and on npu: larger allocations raise


def main() -> None:
    """Reads tasks from standard input, and writes a JSON object per step to standard output."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.ones(1, device="npu").add(1)  # starts the device before memory is limited
    all_memory = torch.npu.get_device_properties(0).total_memory  # type: ignore[attr-defined]
    torch.npu.set_per_process_memory_fraction(min(1.0, _MEMORY / all_memory))  # type: ignore[attr-defined]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(_reply)


def _reply(task: dict[str, Any], write: Say) -> None:
    def say(**what: Any) -> None:
        write(what)

    if "call" in task:
        _bound_memory()
        _make(Call.from_json(task["call"]), task["places"], say)
    else:
        _draw(task, say)
    say(at="done")


@functools.cache
def _bound_memory() -> None:
    """Limits memory; called once, after all libraries are loaded."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, most))


def _draw(task: dict[str, Any], say: Callable[..., None]) -> None:
    """Runs the calls of a task; draws the first ``skip`` calls without running them."""
    import hypothesis
    from hypothesis.configuration import set_hypothesis_home_dir

    from npu_ops.op_conformance.fuzz.strategies import calls

    set_hypothesis_home_dir(tempfile.gettempdir())  # no files are kept or left here
    _bound_memory()
    op: str = task["op"]
    places = task.get("places", ["cpu", "npu"])
    made = 0

    def one(call: Call) -> None:
        nonlocal made
        made += 1
        if made > task["skip"]:
            _make(call, places, say)

    settings = hypothesis.settings(
        max_examples=task["calls"],
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    seed = zlib.crc32(f"{task['seed']} {op}".encode())
    given = hypothesis.given(calls(op, Call(op).function._schema))
    hypothesis.seed(seed)(settings(given(one)))()


def _make(call: Call, places: list[str], say: Callable[..., None]) -> None:
    """Runs a call on each device, and compares the results if both ran."""
    text = call.to_json()
    try:
        place(call.build(), "cpu")
    except (RuntimeError, ValueError, TypeError) as error:
        say(at="drawn", call=text, note=f"cannot be built: {type(error).__name__}: {error}")
        return
    ends, message = {}, ""
    for where in places:
        say(at=where, call=text)
        arguments, keywords = place(call.build(), where)
        end, message = _end(call, arguments, keywords)
        ends[where] = (end, (arguments, keywords))
    said = {where: _named(end) for where, (end, _) in ends.items()}
    wrong = refusal = None
    if len(ends) == 2 and is_comparable(call):
        say(at="comparison", call=text)
        if _REFUSAL in message and said["cpu"] == "result":
            refusal = _line(message)
        else:
            wrong = _line(_difference(call, *ends["npu"], ends["cpu"]))
    say(at="end", ends=said, difference=wrong, refusal=refusal)


def _line(text: str | None) -> str | None:
    return text and " ".join(text.split())


def _end(call: Call, arguments: list[Any], keywords: dict[str, Any]) -> tuple[Any, str]:
    """Returns the result, or the class of the error with its text."""
    function = call.function
    said = ""

    def make(_: Any, *given: Any, **named: Any) -> Any:
        nonlocal said
        try:
            return function(*given, **named)
        except Exception as error:
            said = str(error)
            raise

    end = outcome(make, (None, tuple(arguments), keywords))
    return end, said


def _is_readable(value: Any) -> bool:
    """Whether torch can compare it with itself; some results cannot be read at all."""
    try:
        difference(on_cpu(value), value)
    except Exception:  # noqa: BLE001  # whatever the tensor brings
        return False
    return True


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _strides(got: Any, expected: Any) -> str | None:
    """Returns the strides of results of one shape, if they are visible."""
    for ours, theirs in zip(_tensors(got), _tensors(expected), strict=True):
        if theirs.layout is not torch.strided or theirs.is_nested or theirs.numel() == 0:
            continue
        steps = [
            (ours.stride(dim), theirs.stride(dim))
            for dim in range(theirs.dim())
            if theirs.size(dim) > 1
        ]
        if any(mine != other for mine, other in steps):
            return f"expected strides {theirs.stride()}, got {ours.stride()}"
    return None


def _named(end: Any) -> str:
    return end.__name__ if isinstance(end, type) else "result"


def _is_refusal(call: Call, *ends: Any) -> bool:
    """Whether both refuse a layout; the class depends on the layer of torch that checked first."""
    layouts = ("sparse", "nested", "qint", "quint")
    return all(
        any(end is each for each in (RuntimeError, NotImplementedError)) for end in ends
    ) and any(f'"{layout}' in call.to_json() for layout in layouts)


def _difference(call: Call, got: Any, given: Any, cpu: tuple[Any, Any]) -> str | None:
    expected, cpu_given = cpu
    if expected is RuntimeError and got is torch.OutOfMemoryError:
        return None  # as on CUDA: the CPU's allocator has no error class
    if isinstance(expected, type) or isinstance(got, type):
        return None if _is_refusal(call, got, expected) else difference(got, expected)
    wrong = placement(given, got)
    if wrong is not None or is_undefined(call):
        return wrong
    try:
        return (
            difference(got, expected)
            or difference(_tensors(given), _tensors(cpu_given))
            or _strides(got, expected)
        )
    except Exception as error:  # noqa: BLE001  # of the comparison, which is reported
        if not _is_readable(expected):
            return None
        return f"cannot be compared: {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
