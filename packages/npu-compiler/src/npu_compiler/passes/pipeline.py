"""The stages of a compilation, in order, and the passes of each: the one list.

A module of npu_compiler.passes holds passes of one concept, on npu_compiler.passes.infra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from npu_compiler.passes.activations import (
    FoldBatchNorm,
    FuseConvBnRelu,
    FuseGelu,
    FuseRmsNorm,
    FuseRotaryEmbedding,
)
from npu_compiler.passes.attention import FuseAttention, OpenSparseAttention, RecognizeCausalMask
from npu_compiler.passes.decompose import OpenComplexNumbers, SeparateConvolutionGradients
from npu_compiler.passes.infra.pass_base import Facts, GraphPass, PassResult
from npu_compiler.passes.linears import (
    BatchMatmuls,
    FuseAddmmRelu,
    FuseLinear,
    FuseLinearActivation,
    FuseSwiglu,
    MergeLinears,
)
from npu_compiler.passes.memory import (
    SeparateOutputViews,
    UseElementsAsTensors,
    UseFunctionalForms,
    WriteInPlace,
)
from npu_compiler.passes.simplify import (
    DropEmptyParts,
    FoldConstants,
    MergeCommonSubexpressions,
    RemoveDeadCode,
    SimplifyCasts,
    SimplifyViews,
)

__all__ = ["PASSES", "STAGES", "Stage", "pass_names", "run_passes"]


@dataclass(frozen=True)
class Stage:
    """One step from a Python function to a program: its name, and what it does in one line."""

    name: str
    what: str


STAGES: tuple[Stage, ...] = (
    Stage("capture", "dynamo traces the model into a graph of torch calls"),
    Stage("decompose", "AOTAutograd makes it functional aten calls"),
    Stage("normalize", "one form for what can be written in several"),
    Stage("fuse", "several calls that are one operation become one"),
    Stage("layout", "what shares memory, and in which order bytes lie"),
    Stage("partition", "which calls make a program together"),
    Stage("lower", "each call becomes OpenVINO nodes"),
    Stage("tune", "the device's compiler, with options that were measured"),
    Stage("run", "the program on the tensors' own memory"),
)

# The order is the order in which they run. Writes come first, since other passes keep away from
# what is written; views of results come last, since they are for the caller and not for fusions.
PASSES: tuple[GraphPass, ...] = (
    RemoveDeadCode(),
    DropEmptyParts(),
    OpenSparseAttention(),
    OpenComplexNumbers(),
    UseElementsAsTensors(),
    UseFunctionalForms(),
    WriteInPlace(),
    FoldConstants(),
    MergeCommonSubexpressions(),
    SimplifyCasts(),
    SeparateConvolutionGradients(),
    FuseLinear(),
    SimplifyViews(),
    FuseRotaryEmbedding(),
    FuseRmsNorm(),
    FuseGelu(),
    FuseSwiglu(),
    FuseAttention(),
    RecognizeCausalMask(),
    FoldBatchNorm(),
    FuseConvBnRelu(),
    FuseLinearActivation(),
    FuseAddmmRelu(),
    MergeLinears(),
    BatchMatmuls(),
    SeparateOutputViews(),
)


def pass_names() -> tuple[str, ...]:
    """Returns the names of all passes, in the order in which they run."""
    return tuple(graph_pass.name for graph_pass in PASSES)


def run_passes(
    graph: fx.Graph,
    facts: Facts,
    *,
    enabled: Iterable[str] = (),
    disabled: Iterable[str] = (),
    watch: Callable[[GraphPass, PassResult], None] | None = None,
) -> tuple[PassResult, ...]:
    """Runs the passes on a captured graph, in place.

    Args:
        graph: functional aten calls with fake values in `meta["val"]`.
        facts: what passes may know.
        enabled: names of passes to run that do not run by default.
        disabled: names of passes to leave out; it wins over enabled.
        watch: called after each pass with the pass and what it did.

    Raises:
        PassError: [pass-broke-graph] a pass left a graph that is not what it was given.
    """
    asked, without = set(enabled), set(disabled)
    results = []
    for graph_pass in PASSES:
        is_on = graph_pass.by_default or graph_pass.name in asked
        if not is_on or graph_pass.name in without:
            continue
        result = graph_pass.run(graph, facts)
        results.append(result)
        if watch is not None:
            watch(graph_pass, result)
    return tuple(results)
