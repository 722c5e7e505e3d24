"""Fixture: graphs that were recalled from the cache."""

from __future__ import annotations

from typing import Any

import pytest

from npu_compiler.torch_compile import graph_cache
from npu_compiler.torch_compile.graph_cache import RecalledGraph


@pytest.fixture
def recalled(monkeypatch: pytest.MonkeyPatch) -> list[RecalledGraph]:
    """Graphs that were recalled since the test began."""
    made: list[RecalledGraph] = []

    class Watched(RecalledGraph):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(graph_cache, "RecalledGraph", Watched)
    return made
