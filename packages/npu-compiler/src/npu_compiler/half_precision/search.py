"""The search for modules that must stay in float32 for outputs to be near those of float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import fx

from npu_compiler.graph.kept_float32 import keep_name
from npu_compiler.half_precision.run import HalfRun, is_finding, is_lossy, run_both

__all__ = ["TOLERANCE", "KeptSearch", "search_kept"]

# Largest error of an output by its largest value.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class KeptSearch:
    """What a search came to.

    Attributes:
        first: the run before anything was added to what is kept.
        last: the run with what is kept now.
        kept: names of modules, or patterns of them.
    """

    first: HalfRun
    last: HalfRun
    kept: tuple[str, ...]


def search_kept(
    module: fx.GraphModule,
    values: Mapping[str, Any],
    *,
    kept: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    mend: bool = True,
) -> KeptSearch:
    """Runs a graph in both precisions, and keeps modules in float32 until outputs are near.

    Args:
        module: as of npu_compiler.half_precision.run.run_both.
        values: of its inputs, by placeholder name.
        kept: what is kept from the start.
        tolerance: what counts as near.
        mend: whether anything may be added to it.
    """
    given, names = tuple(kept), list(kept)
    run = first = _run(module, values, names)
    while mend and run.error > tolerance and (more := _next_to_keep(run, tolerance, names)):
        names += more
        run = _run(module, values, names)
    for added in reversed(names[len(given) :]):  # what overflowed need not have done harm
        others = [other for other in names if other != added]
        if (trial := _run(module, values, others)).error <= tolerance:
            names, run = others, trial
    return KeptSearch(first, run, tuple(names))


def _run(module: fx.GraphModule, values: Mapping[str, Any], kept: Sequence[str]) -> HalfRun:
    def is_kept(node: fx.Node) -> bool:
        return any(fnmatchcase(keep_name(node), pattern) for pattern in kept)

    return run_both(module, values, is_kept)


def _next_to_keep(run: HalfRun, tolerance: float, kept: Sequence[str]) -> list[str]:
    """The modules whose calls do the harm that no other harm explains; none when all is well."""
    harmful = [call for call in run.calls if call.overflowed or is_lossy(call)]
    if not harmful:  # NaN of infinities goes away with what overflowed
        harmful = [call for call in run.calls if is_finding(call)]
    names = [call.module for call in harmful]
    if not names and run.error > tolerance:
        names = [call.module for call in run.calls if call.error > tolerance]
        names = [name for name in names if name not in kept][:1]
    return [name for name in dict.fromkeys(names) if name not in kept]
