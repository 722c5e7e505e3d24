"""A graph's program compared with the torch calls that it was recorded as, on real inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

import npu_runtime
from npu_compiler.graph_builder.recording import Replay
from npu_compiler.lowering import LoweredModel, lower
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import compile_options, load_tolerant
from npu_compiler.programs.execution import ProgramCall, plain_call
from npu_compiler.quantize import CompressionReport
from npu_compiler.verification.compressed import decompressed
from npu_compiler.verification.program_trial import ProgramTrial, Subject
from npu_compiler.verification.wrong_results import WrongResults

__all__ = ["GraphTrial", "Tried"]

_NAME = "GraphBuilder"


@dataclass(frozen=True)
class Tried:
    """What came of a run that was compared.

    Attributes:
        results: that are right, on the host.
        program: for the next runs; another than before where that one was mended.
        eager: for the next runs in the program's place, where it is wrong.
    """

    results: list[torch.Tensor]
    program: npu_runtime.Program
    eager: Replay | None


class GraphTrial:
    """Judges runs of a graph's program, and says what came of it."""

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
        """Takes a graph, and what its program was made of.

        Args:
            original: the graph before any pass.
            lowered: what became of it.
            replay: the recorded calls.
            weights: placeholder name -> constant of the graph.
            compression: what became of the weights of products, or None.
            config: of the graph.
            precision: in which the program computes.
            load: loads the program with further options of the device's compiler.
        """
        self._original, self._lowered, self._replay = original, lowered, replay
        self._weights, self._compression = weights, compression
        self._config, self._precision, self._load = config, precision, load

    def run(
        self, program: npu_runtime.Program, inputs: Sequence[torch.Tensor], *, is_strict: bool
    ) -> Tried:
        """Runs a program, compares, and mends it where it can.

        Args:
            program: of the graph.
            inputs: in the program's order.
            is_strict: whether a program that cannot be mended is an error.

        Raises:
            WrongResultError: [wrong-result] under strict, for a program that cannot be mended.
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
        lowered = lower(part, constants=constants, name=f"{_NAME}/part", nan=self._config.nan)
        options = {**compile_options(self._precision), **self._config.device_options}
        program = load_tolerant(lowered.model, name=f"{_NAME}/part", options=options)
        return plain_call(program, lowered.input_names, len(lowered.output_names))
