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

    name: str  # in records and reports; it must not change its meaning
    enabled_passes: tuple[str, ...] = ()  # run beside those of the configuration
    disabled_passes: tuple[str, ...] = ()  # left out beside those of the configuration
    device_options: tuple[tuple[str, str], ...] = ()  # properties of the device's compiler
    precision: str | None = None  # to compute in; tried only where the configuration leaves it open
    on_host: bool = False  # every op by its own kernel, no program
    # What programs are made for; tried only where the configuration leaves it open.
    target: str | None = None

    @property
    def is_of_the_program(self) -> bool:
        """Whether it changes programs alone, and no property of the device that serves."""
        others = (self.device_options, self.precision, self.on_host, self.target)
        return not any(others)

    def fits(self, config: CompilerConfig) -> bool:
        """Whether a configuration leaves open what the candidate decides."""
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


# The first is what an untuned graph gets: nothing slower than it is ever chosen.
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
    """Returns the candidate of a name, or None for one that this version does not have."""
    return next((candidate for candidate in CANDIDATES if candidate.name == name), None)


def configured(
    graph: fx.Graph, *, kind: str, config: CompilerConfig
) -> tuple[CompilerConfig, str | None]:
    """Returns the configuration that was recorded as the fastest, and the candidate's name."""
    if kind != "inference" or not TuningStore(config.cache_dir).directory.is_dir():
        return config, None
    candidate = recorded_candidate(tuning_key(graph, kind=kind, config=config), config)
    if candidate is None:
        return config, None
    return candidate.applied(config, graph), candidate.name


def recorded_candidate(key: str, config: CompilerConfig) -> Candidate | None:
    """Returns the candidate that is recorded as the fastest, if the options leave it open."""
    record = TuningStore(config.cache_dir).read(key)
    candidate = find_candidate(record.chosen) if record is not None else None
    return candidate if candidate is not None and candidate.fits(config) else None
