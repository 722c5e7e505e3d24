"""Durations of tests in the JUnit files that `nox -s tests` keeps, and cheaper processes and seeds.

`setup_s`, `call_s` and `teardown_s` are the phases; `fixture:NAME` is the set-up of one fixture,
without the fixtures that it requests; `compile_s` is the time that the test's process, and not its
children, spent on capturing, lowering and building programs.
"""

import contextlib
import gc
import subprocess
import sys
import time
import types
from collections.abc import Generator, Iterator
from typing import Any

import pytest

import forked_python

SHORTEST_S = 0.005  # of a fixture that is worth a property
_compiling = {"depth": 0, "total_s": 0.0}
_fixtures: list[tuple[str, float]] = []


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Records how long a fixture took to set up."""
    start_s = time.perf_counter()
    try:
        return (yield)
    finally:
        duration_s = time.perf_counter() - start_s
        if duration_s > SHORTEST_S:
            _fixtures.append((f"{fixturedef.baseid}::{fixturedef.argname}", duration_s))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the durations to the report."""
    _count_compiling()
    keep = item.user_properties.append
    keep((f"{call.when}_s", f"{call.duration:.4f}"))
    if call.when == "teardown":  # JUnit takes the properties of this report
        for name, duration_s in _fixtures:
            keep((f"fixture:{name}", f"{duration_s:.4f}"))
        if _compiling["total_s"]:
            keep(("compile_s", f"{_compiling['total_s']:.4f}"))
        _fixtures.clear()
        _compiling["total_s"] = 0.0
    return (yield)


def _count_compiling() -> None:
    """Adds up spans of the categories `compile` and `load`, without becoming a listener."""
    observe = sys.modules.get("npu_runtime.observe")
    if observe is None or hasattr(observe.span, "counted"):
        return
    emit = observe.span

    @contextlib.contextmanager
    def timed(span: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        start_s = time.perf_counter()
        _compiling["depth"] += 1
        try:
            with span:
                yield
        finally:
            _compiling["depth"] -= 1
            if not _compiling["depth"]:
                _compiling["total_s"] += time.perf_counter() - start_s

    def counted(
        category: str, name: str, **args: object
    ) -> contextlib.AbstractContextManager[None]:
        span = emit(category, name, **args)
        return timed(span) if category in ("compile", "load") else span

    counted.counted = True  # type: ignore[attr-defined]
    observe.span = counted


def pytest_collection_finish() -> None:
    """Keeps collections of garbage in tests from visiting the objects of torch and of pytest."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks the child processes of `npu_command.children`, with torch's test databases loaded."""
    from npu_command import children

    def start(command: list[str], *, text: bool, **options: Any) -> object:
        databases = ["torch.testing._internal.common_methods_invocations"]
        return forked_python.start(command, preload=databases, **options)

    replaced = types.SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    monkeypatch.setattr(children, "subprocess", replaced)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Makes torch.manual_seed cheap: it formats a stack for each kind of device that is absent."""
    torch = sys.modules.get("torch")
    if torch is not None and not hasattr(torch.random, "seeds_absent_devices"):
        torch.random.seeds_absent_devices = False
        for kind in ("cuda", "xpu", "mtia"):
            module = getattr(torch, kind)
            if not module.is_available():
                module.manual_seed_all = lambda seed: None
