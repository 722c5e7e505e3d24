"""The stages of a compilation and their passes, in order.

Each module of npu_compiler.passes has the passes of one concept, based on
npu_compiler.passes.infra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx

from npu_compiler.errors import PassError, RegistryError
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
from npu_compiler.passes.registered import (
    REGISTERED,
    Registered,
    code_digest,
    graph_passes,
    model_passes,
    pass_failure,
)
from npu_compiler.passes.simplify import (
    DropEmptyParts,
    FoldConstants,
    MergeCommonSubexpressions,
    RemoveDeadCode,
    SimplifyCasts,
    SimplifyViews,
)
from npu_compiler.plugins import place_of
from npu_runtime.public_calls import public_call

__all__ = ["PASSES", "STAGES", "Stage", "pass_names", "register_pass", "run_passes"]


@dataclass(frozen=True)
class Stage:
    """One step from a Python function to a program: a name and a description."""

    name: str
    what: str


STAGES: tuple[Stage, ...] = (
    Stage("capture", "dynamo traces the model into a graph of torch calls"),
    Stage("decompose", "AOTAutograd makes it functional aten calls"),
    Stage("normalize", "equivalent forms become one form"),
    Stage("fuse", "several calls that are one operation become one"),
    Stage("layout", "memory: views, in-place writes and layouts"),
    Stage("partition", "calls are grouped into programs"),
    Stage("lower", "each call becomes OpenVINO nodes"),
    Stage("tune", "the device's compiler runs, with measured options"),
    Stage("run", "the program runs on the tensors' memory"),
)

# Passes run in this order. Writes are first, because other passes skip written values; views of
# results are last, because they would block fusions.
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
    """Returns the names of all passes in execution order, passes over models last."""
    over_graphs = tuple(one.name for one in graph_passes(PASSES))
    return over_graphs + tuple(row.name for row in model_passes())


@public_call
def register_pass(*, before: str | None = None, after: str | None = None) -> Callable[[type], type]:
    """Registers the decorated class as a pass over each compiled graph.

    A subclass of [GraphPass][npu_compiler.passes.GraphPass], or of
    [FusePattern][npu_compiler.passes.FusePattern] for a pattern, rewrites the captured graph before
    its calls are converted. A subclass of `openvino.passes.ModelPass`, or of
    `openvino.passes.MatcherPass` for a pattern, rewrites the converted OpenVINO model. Both apply
    to graphs of `torch.compile`, `npu_compiler.compile`, `export` and `GraphBuilder`. The class is
    instantiated without arguments. The pass must not change inputs and outputs.

    `disabled_passes` skips a registered pass by its name: the class's attribute `name`, or
    `__name__` for an OpenVINO class without one. If a pass raises an error, the graph runs eagerly
    with a warning that has the pass's line; under strict the error is raised.

    A wheel names the module with the decorated classes in an entry point of the group
    `npu_compiler.passes`; it is imported when a graph is first compiled. Wheels are ordered by the
    names of their entry points.

    Args:
        before: name of the pass that it precedes.
        after: name of the pass that it follows. Passes after the same pass keep the order of
            registration. Without a neighbour, a pass over graphs is the last of its stage, and a
            pass over models is the last of all.

    Raises:
        RegistryError: [bad-pass] for another kind of class, an unknown stage or neighbour, or two
            neighbours; [duplicate-pass] if another pass has the name.
    """
    if before is not None and after is not None:
        raise _bad(
            "register_pass: a pass must have at most one neighbour",
            f"before={before!r} and after={after!r}",
            "Name one of them",
        )

    def register(made: type) -> type:
        row = _checked(made, before, after)
        REGISTERED[row.name] = row
        return made

    return register


def _checked(made: type, before: str | None, after: str | None) -> Registered:
    place = place_of(made)
    if isinstance(made, type) and issubclass(made, GraphPass):
        one: Any = made()
        stages = ("normalize", "fuse", "layout")
        if one.stage not in stages:
            raise _bad(
                f"pass {one.name} at {place}: its stage must be one of {', '.join(stages)}",
                repr(one.stage),
                "Set the class's attribute `stage`",
            )
        name, neighbours = str(one.name), [known.name for known in graph_passes(PASSES)]
    elif _is_of_openvino(made):
        name = str(getattr(made, "name", made.__name__))
        neighbours = [row.name for row in model_passes()]
        one = made
    else:
        raise _bad(
            f"register_pass at {place} must decorate a subclass of npu_compiler.passes.GraphPass, "
            "openvino.passes.ModelPass or openvino.passes.MatcherPass",
            repr(made),
            "Derive the class from one of them",
        )
    neighbour = before or after
    if neighbour is not None and neighbour not in neighbours:
        raise _bad(
            f"pass {name} at {place}: its neighbour must be one of {', '.join(neighbours)}",
            repr(neighbour),
            "Name one of them, or import its module first",
        )
    own = {one.name: "npu_compiler.passes.pipeline" for one in PASSES}
    taken = own | {row.name: row.place for row in REGISTERED.values()}
    if name in taken:
        raise RegistryError(
            f"pass {name}: a name must have only one pass, got a second at {place}, the first is "
            "at "
            f"{taken[name]}. Rename one of them.",
            code="duplicate-pass",
        )
    return Registered(name, one, before, after, place, code_digest(made.__module__))


def _is_of_openvino(made: Any) -> bool:
    from openvino.passes import MatcherPass, ModelPass  # late: most graphs have no such pass

    return isinstance(made, type) and issubclass(made, (MatcherPass, ModelPass))


def _bad(rule: str, received: str, step: str) -> RegistryError:
    return RegistryError(f"{rule}, got {received}. {step}.", code="bad-pass")


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
        facts: inputs of the passes besides the graph.
        enabled: names of passes to run that are off by default.
        disabled: names of passes to skip; takes precedence over enabled.
        watch: called after each pass with the pass and its result.

    Raises:
        PassError: [pass-broke-graph] if a pass changed the graph's interface or left an invalid
            graph; [pass-failed] if a registered pass raised an error.
    """
    asked, without = set(enabled), set(disabled)
    results = []
    for graph_pass in graph_passes(PASSES):
        is_on = graph_pass.by_default or graph_pass.name in asked
        if not is_on or graph_pass.name in without:
            continue
        row = REGISTERED.get(graph_pass.name)
        try:
            result = graph_pass.run(graph, facts)
        except Exception as failure:
            if row is None or isinstance(failure, PassError):
                raise
            raise pass_failure(row, failure) from failure
        results.append(result)
        if watch is not None:
            watch(graph_pass, result)
    return tuple(results)
