"""The child process: draws graphs by their numbers, compares each, and reports.

It names each graph before it runs it, so that the parent knows which one ended the process.
"""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Callable
from typing import Any

import torch

from npu_command.children import Say, serve
from npu_compiler.fuzz.comparison import compare
from npu_compiler.fuzz.drawing import draw_graph
from npu_compiler.fuzz.graph import RandomGraph
from npu_compiler.fuzz.modes import Mode, draw_mode
from npu_compiler.fuzz.shrinking import shrink

__all__ = ["main"]


def main() -> None:
    """Compares graphs, as the tasks say."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # tensors are tiny, and there is a child for each core
    serve(_reply)


def _reply(task: dict[str, Any], write: Say) -> None:
    """Compares the graphs of a task, or the one that it shows.

    Answers {"number": ...} before a graph, {"result": ...} after it, then {"smaller": ...} after
    one that did not end well, and {"done": true} at the end.
    """

    def say(**what: Any) -> None:
        write(what)

    if "replay" in task:
        graph, mode = task["replay"]
        _compare(RandomGraph.from_json(graph), Mode.from_json(mode), 0.0, say)
    else:
        seed = task["seed"]
        for number in range(task["first"], task["end"]):
            kind, graph = draw_graph(seed, number)
            mode = draw_mode(
                seed, number, kind, graph, verify=task["verify"], target=task["target"]
            )
            say(number=number, kind=kind, graph=graph.to_json(), mode=mode.to_json())
            _compare(graph, mode, task["shrink_s"], say)
    say(done=True)


def _compare(graph: RandomGraph, mode: Mode, limit_s: float, say: Callable[..., None]) -> None:
    found = compare(graph, mode)
    say(result=dataclasses.asdict(found))
    if found.kind in ("equal", "invalid") or not limit_s:
        return
    smaller, simpler = shrink(graph, mode, found, limit_s=limit_s)
    say(smaller=smaller.to_json(), simpler=simpler.to_json())


if __name__ == "__main__":
    main()
