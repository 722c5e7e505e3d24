"""Dumps of a compilation: each stage's graph as text, the models, and one summary per graph.

NPU_COMPILE_DEBUG names the directory; `npu-compiler show` renders it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path

import openvino as ov
from torch import fx

from npu_compiler.config import read_settings
from npu_compiler.graph.nodes import op_name
from npu_compiler.graph.origins import graph_text
from npu_compiler.graph_compiler.partition import Plan
from npu_compiler.graph_compiler.records import GraphRecord
from npu_compiler.passes.infra.pass_base import GraphPass
from npu_compiler.programs.load import write_model

__all__ = ["SUMMARY", "GraphDump", "dump_program"]

_logger = logging.getLogger(__name__)

SUMMARY = "graph.json"


class GraphDump:
    """The dumps of one captured graph, if enabled."""

    def __init__(self, name: str) -> None:
        """Takes the graph's name, such as graph_0."""
        self._name = name
        self._files: list[str] = []

    def watch(self, graph_pass: GraphPass, graph: fx.Graph) -> None:
        """Writes the graph after the last pass of a stage."""
        # The stage's text so far; the last pass of a stage overwrites it.
        self.write_stage(graph_pass.stage, graph)

    def finish_passes(self, graph: fx.Graph) -> None:
        """Writes the graph to partition."""
        self.write_stage("partition", graph)

    def write_stage(self, stage: str, graph: fx.Graph) -> None:
        """Writes a graph as it enters or leaves a stage."""
        place = _place(self._name)
        if place is None:
            return
        if stage not in self._files:
            self._files.append(stage)
        number = self._files.index(stage)
        _write(place / f"{number}-{stage}.txt", graph_text(graph, sources=True))

    def write_record(self, plan: Plan, record: GraphRecord) -> None:
        """Writes the record of the graph."""
        place = _place(self._name)
        if place is None:
            return
        content = dataclasses.asdict(record)
        content["stages"] = [f"{i}-{stage}.txt" for i, stage in enumerate(self._files)]
        content["levels"] = {node.name: level for node, level in plan.levels.items()}
        content["reasons"] = {
            node.name: f"{op_name(node.target)}: {reason}" for node, reason in plan.eager.items()
        }
        _write(place / SUMMARY, json.dumps(content, indent=2))


def dump_program(name: str, model: ov.Model) -> None:
    """Writes a lowered model as IR, if dumps are wanted."""
    graph, _, number = name.partition("/")
    place = _place(graph)
    if place is None:
        return
    try:
        write_model(model, place / f"program-{number or 0}.xml")
    except (OSError, RuntimeError) as failure:
        _logger.warning("NPU_COMPILE_DEBUG: cannot write %s (%s)", place, failure)


def _place(name: str) -> Path | None:
    """Returns the directory of a graph; each process has its own."""
    parent = read_settings().debug_dir
    if parent is None:
        return None
    place = parent / f"{os.getpid()}-{name}"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        _logger.warning("NPU_COMPILE_DEBUG: cannot write to %s (%s)", parent, failure)
        return None
    return place


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as failure:
        _logger.warning("NPU_COMPILE_DEBUG: cannot write %s (%s)", path, failure)
