"""Which way of compiling a graph is recorded as the fastest."""

from __future__ import annotations

from torch import fx

from npu_compiler.options import CompilerConfig
from npu_compiler.tuning.candidates import Candidate, find_candidate
from npu_compiler.tuning.store import TuningStore, tuning_key

__all__ = ["configured", "recorded_candidate"]


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
    """Returns the way of compiling that is recorded as the fastest, if the options leave it open.

    Args:
        key: of the graph, from tuning_key.
        config: as it was asked for.
    """
    record = TuningStore(config.cache_dir).read(key)
    candidate = find_candidate(record.chosen) if record is not None else None
    return candidate if candidate is not None and candidate.fits(config) else None
