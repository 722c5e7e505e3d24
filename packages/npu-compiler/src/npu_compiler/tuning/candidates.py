"""Candidates: ways to compile one graph, and the recorded choice among them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import fx

from npu_compiler.graph.nodes import op_name
from npu_compiler.options import CompilerConfig
from npu_compiler.tuning.store import TuningStore, tuning_key

__all__ = ["CANDIDATES", "Candidate", "configured", "find_candidate", "recorded_candidate"]


@dataclass(frozen=True)
class Candidate:
    """A way to compile a graph."""

    name: str  # in records and reports; its meaning must not change
    enabled_passes: tuple[str, ...] = ()  # passes to run in addition to the configuration's
    disabled_passes: tuple[str, ...] = ()  # passes to leave out in addition to the configuration's
    device_options: tuple[tuple[str, str], ...] = ()  # properties of the device's compiler
    precision: str | None = None  # precision; tried only if the configuration leaves it open
    on_host: bool = False  # every op runs its own kernel, without a program
    # Target of programs; tried only if the configuration leaves it open.
    target: str | None = None

    @property
    def is_of_the_program(self) -> bool:
        """Whether it changes only programs, and no property of the current device."""
        others = (self.device_options, self.precision, self.on_host, self.target)
        return not any(others)

    def fits(self, config: CompilerConfig) -> bool:
        """Whether a configuration leaves the candidate's choices open."""
        if self.precision is not None and (config.computed_in or config.compression):
            return False
        if self.target is not None and config.target is not None:
            return False
        if "merge_linears" in self.enabled_passes and config.compression:
            return False
        return not (self.on_host and (config.strict or config.compression))

    def applied(self, config: CompilerConfig, graph: fx.Graph) -> CompilerConfig:
        """Returns the configuration with the candidate's choices."""
        fallback = config.fallback_ops
        if self.on_host:
            ops = {op_name(node.target) for node in graph.nodes if node.op == "call_function"}
            fallback = tuple(sorted({*fallback, *ops}))
        return dataclasses.replace(
            config,
            enabled_passes=(*config.enabled_passes, *self.enabled_passes),
            disabled_passes=(*config.disabled_passes, *self.disabled_passes),
            device_options={**dict(config.device_options), **dict(self.device_options)},
            precision=self.precision or config.precision,
            fallback_ops=fallback,
            target=self.target or config.target,
        )


# The first is the default of untuned graphs; slower ones are never chosen.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate("default"),
    Candidate("merged linears", enabled_passes=("merge_linears",)),
    Candidate("masks kept", disabled_passes=("recognize_causal_mask",)),
    Candidate("no snippets", device_options=(("SNIPPETS_MODE", "DISABLE"),)),
    Candidate("bfloat16", precision="bfloat16"),
    Candidate("float16", precision="float16"),
    Candidate("host kernels", on_host=True),
    Candidate("kernel program", target="kernels"),
    Candidate("openvino program", target="openvino"),
)


def find_candidate(name: str) -> Candidate | None:
    """Returns the candidate of a name, or None if this version has none."""
    return next((candidate for candidate in CANDIDATES if candidate.name == name), None)


def configured(
    graph: fx.Graph, *, kind: str, config: CompilerConfig
) -> tuple[CompilerConfig, str | None]:
    """Returns the configuration recorded as the fastest, and the candidate's name."""
    if kind != "inference" or not TuningStore(config.cache_dir).directory.is_dir():
        return config, None
    candidate = recorded_candidate(tuning_key(graph, kind=kind, config=config), config)
    if candidate is None:
        return config, None
    return candidate.applied(config, graph), candidate.name


def recorded_candidate(key: str, config: CompilerConfig) -> Candidate | None:
    """Returns the candidate recorded as the fastest, if the options leave the choice open."""
    record = TuningStore(config.cache_dir).read(key)
    candidate = find_candidate(record.chosen) if record is not None else None
    return candidate if candidate is not None and candidate.fits(config) else None
