"""The child process: draws graphs with one seed, compares each, and reports.

It writes each graph down before it runs it, so that the parent knows which one ended the process
(supervision.py).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from npu_compiler.suite.random_graphs.comparison import compare
from npu_compiler.suite.random_graphs.graph import RandomGraph

__all__ = ["main"]

_DEVICES = ("npu", "cpu")


def main(arguments: list[str]) -> None:
    """Compares graphs: ``COUNT SEED SKIP``, or one of standard input with ``replay DEVICE``.

    Writes JSON lines: {"graph": ..., "device": ...} before and {"end": ...} after each.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # tensors are tiny, and there is a child for each core

    def say(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    if arguments[0] == "replay":
        _compare(RandomGraph.from_json(sys.stdin.read()), arguments[1], say)
    else:
        count, seed, skip = map(int, arguments)
        _draw(count, seed, skip, say)
    say(done=True)


def _draw(count: int, seed: int, skip: int, say: Callable[..., None]) -> None:
    """Draws the graphs of a seed; the first `skip` of them are drawn again and not run."""
    import hypothesis
    from hypothesis.configuration import set_hypothesis_home_dir

    from npu_compiler.suite.random_graphs.strategies import random_graphs

    set_hypothesis_home_dir(tempfile.gettempdir())  # nothing is kept, and nothing is left here
    drawn = 0

    def one(graph: RandomGraph) -> None:
        nonlocal drawn
        drawn += 1
        if drawn > skip:
            _compare(graph, _DEVICES[drawn % 2], say)

    settings = hypothesis.settings(
        max_examples=count,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.seed(seed)(settings(hypothesis.given(random_graphs())(one)))()


def _compare(graph: RandomGraph, device: str, say: Callable[..., None]) -> None:
    say(graph=graph.to_json(), device=device)
    try:
        found = compare(graph, device=device)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
        text = " ".join(str(error).split())
        say(end=f"{type(error).__name__}: {text[:400]}", programs=0, nodes=0, lowered=0)
        return
    say(
        end=found.difference,
        programs=found.programs,
        nodes=found.nodes,
        lowered=found.lowered,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
