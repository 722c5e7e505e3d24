"""The stages of a compilation, in order, and the passes of each: the one list.

A pass is a file of npu_compiler.passes. Stages without passes say which module does their work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from npu_compiler.passes.base import Facts, GraphPass, PassResult
from npu_compiler.passes.batch_matmuls import BatchMatmuls
from npu_compiler.passes.drop_empty_parts import DropEmptyParts
from npu_compiler.passes.fold_constants import FoldConstants
from npu_compiler.passes.fuse_attention import FuseAttention
from npu_compiler.passes.fuse_conv_bn_relu import FuseConvBnRelu
from npu_compiler.passes.fuse_gelu import FuseGelu
from npu_compiler.passes.fuse_linear import FuseLinear
from npu_compiler.passes.fuse_linear_activation import FuseAddmmRelu, FuseLinearActivation
from npu_compiler.passes.fuse_rms_norm import FuseRmsNorm
from npu_compiler.passes.fuse_rotary_embedding import FuseRotaryEmbedding
from npu_compiler.passes.fuse_swiglu import FuseSwiglu
from npu_compiler.passes.merge_common_subexpressions import MergeCommonSubexpressions
from npu_compiler.passes.merge_linears import MergeLinears
from npu_compiler.passes.open_complex_numbers import OpenComplexNumbers
from npu_compiler.passes.open_sparse_attention import OpenSparseAttention
from npu_compiler.passes.recognize_causal_mask import RecognizeCausalMask
from npu_compiler.passes.remove_dead_code import RemoveDeadCode
from npu_compiler.passes.separate_convolution_gradients import SeparateConvolutionGradients
from npu_compiler.passes.separate_output_views import SeparateOutputViews
from npu_compiler.passes.simplify_casts import SimplifyCasts
from npu_compiler.passes.simplify_views import SimplifyViews
from npu_compiler.passes.use_elements_as_tensors import UseElementsAsTensors
from npu_compiler.passes.use_functional_forms import UseFunctionalForms
from npu_compiler.passes.write_in_place import WriteInPlace

__all__ = ["PASSES", "STAGES", "Stage", "pass_names", "run_passes"]


@dataclass(frozen=True)
class Stage:
    """One step from a Python function to a program.

    Attributes:
        name: as in spans, dumps and reports.
        what: it does, in one line.
    """

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
