"""The graph builder: a graph built by hand and compiled to one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import openvino as ov
import torch
from torch import fx

import npu_runtime
from npu_compiler.errors import GraphError, LoweringError
from npu_compiler.exported.capture import Captured, capture_module
from npu_compiler.graph.nodes import is_symbolic, op_name
from npu_compiler.graph.origins import source_line
from npu_compiler.graph_builder.named_calls import NamedCalls
from npu_compiler.graph_builder.recording import GraphTensor, Recording, Replay
from npu_compiler.graph_compiler.building import own_precision
from npu_compiler.graph_compiler.targets import is_for_npu
from npu_compiler.lowering import LoweredModel, lower
from npu_compiler.lowering.capability import refusal
from npu_compiler.options import CompilerConfig, resolve_config
from npu_compiler.programs import compile_options, load_tolerant
from npu_compiler.programs.execution import ProgramCall, plain_call
from npu_compiler.programs.index_checks import check_indices
from npu_compiler.quantize import CompressionReport, compress_weights
from npu_compiler.verification.comparison import WrongResults
from npu_compiler.verification.program_check import ProgramTrial, Subject
from npu_compiler.verification.reference import decompressed

__all__ = ["GraphBuilder", "GraphTrial", "Tried"]

_NAME = "GraphBuilder"


@dataclass(frozen=True)
class Tried:
    """Result of a compared run."""

    results: list[torch.Tensor]  # correct results, on the host
    program: npu_runtime.Program  # program for the next runs; a new one if the old one was fixed
    eager: Replay | None  # replaces a wrong program in the next runs


class GraphTrial:
    """Verifies runs of a graph's program, and reports the result."""

    def __init__(
        self,
        original: fx.GraphModule,
        lowered: LoweredModel,
        replay: Replay,
        *,
        weights: Mapping[str, torch.Tensor],
        compression: CompressionReport | None,
        config: CompilerConfig,
        precision: str,
        load: Callable[[Mapping[str, str]], npu_runtime.Program],
    ) -> None:
        """Takes a graph before any pass, and the parts of its program.

        `load` loads the program with additional options of the device's compiler.
        """
        self._original, self._lowered, self._replay = original, lowered, replay
        self._weights, self._compression = weights, compression
        self._config, self._precision, self._load = config, precision, load

    def run(
        self, program: npu_runtime.Program, inputs: Sequence[torch.Tensor], *, is_strict: bool
    ) -> Tried:
        """Runs a program on inputs in its order, compares, and fixes it if possible.

        Raises [wrong-result] under strict if the program cannot be fixed.
        """
        names = self._lowered.output_names
        call = plain_call(program, self._lowered.input_names, len(names))
        trial = ProgramTrial(
            call,
            Subject(
                name=_NAME,
                module=self._original,
                weights=self._computed_weights,
                precision=self._precision,
                drops_nan=bool(self._lowered.drops_nan),
                with_options=self._load,
                build_part=self._build_part,
                keep=lambda verdict: None,
            ),
        )
        trial.watch(is_on=True)
        results: list[torch.Tensor] = call(*inputs)
        verdict = trial.verdict
        is_wrong = verdict is not None and verdict.status == "wrong"
        if verdict is not None:
            found = WrongResults(_NAME, {_NAME: verdict}, difference=None, is_unsteady=False)
            found.tell(is_strict=is_strict)
        return Tried(results, call.program, self._replay if is_wrong else None)

    def _computed_weights(self) -> Mapping[str, torch.Tensor] | str:
        if self._compression is None or not self._compression.weights:
            return self._weights
        return decompressed(self._weights, self._compression, symmetric=self._config.symmetric)

    def _build_part(
        self, part: fx.GraphModule, constants: Mapping[str, torch.Tensor]
    ) -> ProgramCall:
        lowered = lower(
            part,
            constants=constants,
            name=f"{_NAME}/part",
            nan=self._config.nan,
            disabled_passes=self._config.disabled_passes,
        )
        options = {**compile_options(self._precision), **self._config.device_options}
        program = load_tolerant(lowered.model, name=f"{_NAME}/part", options=options)
        return plain_call(program, lowered.input_names, len(lowered.output_names))


class GraphBuilder(NamedCalls):
    """A graph built by hand.

    Its tensors support operators and torch functions, such as `x @ w + 1` and `torch.softmax(x,
    -1)`; the methods here are shortcuts. Each call checks shapes and dtypes.
    """

    def __init__(
        self,
        config: CompilerConfig | None = None,
        *,
        tensor_class: type[GraphTensor] = GraphTensor,
        **options: Any,
    ) -> None:
        """Starts an empty graph.

        Args:
            config: the relevant options are dtype, precision, group_size, symmetric, verify,
                strict, nan, check_indices, disabled_passes, device_options and target. With target
                "NPU", which the device NPU implies, operations that an NPU refuses are replaced by
                equal forms.
            tensor_class: a subclass of GraphTensor, used for every tensor of the graph.
            options: options by keyword, instead of config.

        Raises:
            OptionError: as for CompilerConfig.
            GraphError: [graph-parameter] if tensor_class is not a subclass of GraphTensor.
        """
        if not (isinstance(tensor_class, type) and issubclass(tensor_class, GraphTensor)):
            raise GraphError(
                f"GraphBuilder: `tensor_class` must be a subclass of GraphTensor, got "
                f"{tensor_class!r}. Derive yours from npu_compiler.GraphTensor.",
                code="graph-parameter",
            )
        self._config = resolve_config("GraphBuilder", config, options)
        self._recording = Recording(tensor_class)
        self._program: npu_runtime.Program | None = None
        self._trial: GraphTrial | None = None
        self._eager: Replay | None = None
        self._compiled_length = -1
        self._input_places: tuple[int, ...] = ()
        self._output_places: tuple[int, ...] = ()

    def to_module(self, *outputs: Any) -> Replay:
        """Returns the graph as a module, for compile(), export() and torch.

        Args:
            outputs: tensors of the graph; by default those that no call reads, in order of
                creation.

        Raises:
            GraphError: [graph-output] if there are none.
        """
        chosen: Sequence[Any] = outputs or self._recording.unread()
        if not chosen or not all(isinstance(tensor, GraphTensor) for tensor in chosen):
            raise GraphError(
                f"GraphBuilder: `outputs` must be one or more tensors of the graph, got "
                f"{', '.join(type(x).__name__ for x in chosen) or 'none'}. Add a call first.",
                code="graph-output",
            )
        return self._recording.replay(chosen[0] if len(chosen) == 1 else tuple(chosen))

    def compile(self, *outputs: GraphTensor) -> GraphBuilder:
        """Compiles the program; run() does so if needed.

        Args:
            outputs: tensors of the graph, in the order in which run() returns them; by default
                those that no call reads, in order of creation.

        Raises:
            GraphError: [graph-output].
            LoweringError: [no-converter] or [cannot-lower] for a call that programs cannot have.
        """
        module = self.to_module(*outputs)
        captured, lowered, report = self._lower(module)
        precision = self._config.computed_in or own_precision(captured.program.graph_module.graph)
        options = {**compile_options(precision), **self._config.device_options}
        self._program = _loaded(lowered, options)
        self._input_places = tuple(captured.inputs.index(name) for name in lowered.input_names)
        self._output_places = tuple(index for index in lowered.outputs if index is not None)
        self._compiled_length = self._recording.length
        self._eager = None
        self._trial = None
        if self._config.verify != "off" and captured.original is not None:
            self._trial = GraphTrial(
                captured.original,
                lowered,
                module,
                weights=captured.constants,
                compression=report,
                config=self._config,
                precision=precision,
                load=lambda further: _loaded(lowered, {**options, **further}),
            )
        return self

    def to_openvino(self, *outputs: GraphTensor) -> ov.Model:
        """Returns the graph as an OpenVINO model, to save it or to compile it for another device.

        Args:
            outputs: as for compile().

        Raises:
            GraphError: [graph-output].
            LoweringError: as for compile().
        """
        return self._lower(self.to_module(*outputs))[1].model

    def run(self, *inputs: Any) -> Any:
        """Runs the graph; compiles it first if it is new or has grown.

        Args:
            inputs: one array or tensor per parameter, in order of creation.

        Returns:
            The output, or a tuple of outputs; arrays for arrays and tensors for tensors.

        Raises:
            GraphError: [graph-input] for a wrong number of inputs.
            WrongResultError: [wrong-result] under strict, if the first results differ from torch's
                and no compilation of the graph fixes it.
            npu_runtime.InputError: [program-input] for another shape or dtype.
        """
        if self._program is None or self._compiled_length != self._recording.length:
            self.compile()
        assert self._program is not None
        expected = len(self._recording.parameters)
        if len(inputs) != expected:
            raise GraphError(
                f"GraphBuilder.run: `inputs` must be one per parameter ({expected}), got "
                f"{len(inputs)}. Pass them in the order of creation.",
                code="graph-input",
            )
        are_tensors = any(isinstance(value, torch.Tensor) for value in inputs)
        tensors = [
            value.detach().contiguous()
            if isinstance(value, torch.Tensor)
            else torch.from_numpy(np.array(value))
            for value in inputs
        ]
        results = self._results(tensors, None if are_tensors else "cpu")
        if not are_tensors:
            results = [_as_array(result) for result in results]
        return results[0] if len(results) == 1 else tuple(results)

    __call__ = run

    def _lower(self, module: Replay) -> tuple[Captured, LoweredModel, CompressionReport | None]:
        inputs = self._recording.parameters
        examples = tuple(torch.zeros(tuple(x._fake.shape), dtype=x._fake.dtype) for x in inputs)
        captured = capture_module(module, examples, {}, {}, self._config)
        for_npu = is_for_npu(self._config, npu_runtime.device_info().device)
        lowered = _lowered(
            captured.program.graph_module, captured.constants, self._config, for_npu=for_npu
        )
        report = None
        if self._config.compression is not None:
            report = compress_weights(
                lowered.model,
                mode=self._config.compression,
                group_size=self._config.group_size,
                symmetric=self._config.symmetric,
            )
        if for_npu:
            from npu_compiler.exported.ahead import rewrite_program  # late: only for an NPU

            rewrite_program(lowered.model)
        return captured, lowered, report

    def _results(self, tensors: list[torch.Tensor], device: str | None) -> list[torch.Tensor]:
        assert self._program is not None
        given = [tensors[place] for place in self._input_places]
        if self._eager is not None:
            with torch.no_grad():
                made: list[torch.Tensor] = torch.utils._pytree.tree_leaves(self._eager(*tensors))
            return made
        if self._trial is None:
            made = self._program.run(given, output_device=device)
            return [made[place] for place in self._output_places]
        outcome = self._trial.run(self._program, given, is_strict=self._config.strict)
        self._program, self._eager = outcome.program, outcome.eager
        if self._config.verify == "first":
            self._trial = None
        home = device or next((x.device.type for x in tensors if x.device.type == "npu"), "cpu")
        return [outcome.results[place].to(home) for place in self._output_places]

    def __repr__(self) -> str:
        parameters = len(self._recording.parameters)
        return f"GraphBuilder({parameters} parameters, {self._recording.length} tensors)"


def _loaded(lowered: LoweredModel, options: Mapping[str, str]) -> npu_runtime.Program:
    program = load_tolerant(lowered.model, name="GraphBuilder", options=options)
    return check_indices(program, map(asdict, lowered.index_checks))


def _lowered(
    graph_module: fx.GraphModule,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    *,
    for_npu: bool,
) -> LoweredModel:
    """Lowers the whole graph; an error has the user's line of the unsupported call."""
    nodes = {node.name: node for node in graph_module.graph.nodes}
    config = replace(config, target="openvino")  # also calls that run faster on the host's cores
    for node in nodes.values():
        if node.op == "call_function" and not is_symbolic(node):
            reason = refusal(node, config)
            if reason is not None:
                raise _refused(node, reason)
    try:
        return lower(
            graph_module,
            constants=constants,
            name="GraphBuilder",
            nan=config.nan,
            check_indices=config.check_indices,
            fixed_sizes=for_npu,
            disabled_passes=config.disabled_passes,
        )
    except LoweringError as failure:
        if failure.node_name not in nodes:
            raise
        raise _refused(nodes[failure.node_name], failure.reason) from failure


def _refused(node: fx.Node, reason: str) -> LoweringError:
    line = source_line(node)
    where = "" if line is None else f" ({line})"
    return LoweringError(
        f"GraphBuilder: a program must support each call, got {op_name(node.target)}{where}: "
        f"{reason}. Use other calls, or compute it before run() and make the "
        "result a parameter.",
        code="no-converter" if reason.startswith("no converter") else "cannot-lower",
        node_name=node.name,
        reason=reason,
    )


def _as_array(tensor: torch.Tensor) -> Any:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
