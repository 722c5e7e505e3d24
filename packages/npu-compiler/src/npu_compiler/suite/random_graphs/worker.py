"""The child process: draws graphs by their numbers, compares each, and reports.

It names each graph before it runs it, so that the parent knows which one ended the process
(supervision.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from npu_compiler.suite.random_graphs.comparison import compare
from npu_compiler.suite.random_graphs.drawing import draw_graph
from npu_compiler.suite.random_graphs.graph import RandomGraph
from npu_compiler.suite.random_graphs.modes import Mode, draw_mode
from npu_compiler.suite.random_graphs.shrinking import shrink

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Compares graphs: ``SEED FIRST END VERIFY SHRINK_S``, or standard input with ``replay``.

    Writes JSON lines: {"number": ...} before a graph, {"result": ...} after it, then {"smaller":
    ...} after one that did not end well, and {"done": true} at the end.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # tensors are tiny, and there is a child for each core

    def say(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    if arguments[0] == "replay":
        graph, mode = json.loads(sys.stdin.read())
        _compare(RandomGraph.from_json(graph), Mode.from_json(mode), 0.0, say)
    else:
        seed, first, end = map(int, arguments[:3])
        verify, limit_s = arguments[3], float(arguments[4])
        for number in range(first, end):
            kind, graph = draw_graph(seed, number)
            mode = draw_mode(seed, number, kind, graph, verify=verify.strip("-"))
            say(number=number, kind=kind, graph=graph.to_json(), mode=mode.to_json())
            _compare(graph, mode, limit_s, say)
    say(done=True)


def _compare(graph: RandomGraph, mode: Mode, limit_s: float, say: Callable[..., None]) -> None:
    found = compare(graph, mode)
    say(result=dataclasses.asdict(found))
    if found.kind in ("equal", "invalid") or not limit_s:
        return
    smaller, simpler = shrink(graph, mode, found, limit_s=limit_s)
    say(smaller=smaller.to_json(), simpler=simpler.to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
