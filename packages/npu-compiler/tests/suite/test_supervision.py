"""Architectures in child processes: however a child ends, there is a row."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from npu_command.children import Child
from npu_compiler.suite import find, supervision
from npu_compiler.suite.measurement import Measurement

ANSWER = Measurement("opt", "text decoder", programs=1, error=0.0, finished=True)


@pytest.fixture
def measured(tmp_path):
    """Measures in a child that runs a script, with `name` the architecture's, in place of ours."""
    children = []

    def put(body: str, timeout_s: float = 60) -> Callable[[str], Measurement]:
        script = (
            "import json, os, sys, time\n"
            f"row = json.dumps({{'row': {ANSWER.to_json()!r}}})\n"
            "for line in sys.stdin:\n    name, _ = json.loads(line)\n"
            + textwrap.indent(body, "    ")
            + "\n    print(row, flush=True)\n"
        )
        (tmp_path / "stand_in_child.py").write_text(script)
        path = {"PYTHONPATH": str(tmp_path)}
        child = Child("stand_in_child", timeout_s=timeout_s, environment=path)
        children.append(child)
        return lambda name: supervision.measure_in(
            child, find(name), device="npu", timeout_s=timeout_s
        )

    yield put
    for child in children:
        child.stop()


def test_models_are_measured_one_after_the_other_in_the_order_given():
    shown: list[Measurement] = []
    chosen = [find("opt"), find("resnet")]
    rows = supervision.run_all(
        chosen, device="cpu", seed=0, timeout_s=300, jobs=1, on_row=shown.append
    )
    assert rows == shown
    assert [(row.name, row.detail, row.is_whole) for row in rows] == [
        ("opt", "", True),
        ("resnet", "", True),
    ]


def test_an_exception_is_a_row():
    class Missing:
        name, family = "no_such_model", "encoder"

    child = supervision.make_child(device="cpu", seed=0, timeout_s=300)
    try:
        row = supervision.measure_in(child, Missing, device="cpu", timeout_s=300)
    finally:
        child.stop()
    assert not row.finished
    assert row.detail.startswith("SuiteError: ")


@pytest.mark.parametrize(
    "body, detail",
    [
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("sys.exit(3)", "exit code 3"),
    ],
)
def test_a_child_that_ends_badly_is_a_row_and_the_next_goes_on(measured, body, detail):
    measure = measured(f"if name == 'bert':\n    {body}")
    row = measure("bert")
    assert (row.name, row.family, row.finished, row.is_right) == ("bert", "encoder", False, False)
    assert row.detail == detail
    assert measure("opt") == ANSWER


def test_a_child_that_hangs_is_a_row(measured):
    measure = measured("if name == 'bert':\n    time.sleep(60)", timeout_s=1)
    assert measure("bert").detail == "no result after 1 s"
    assert measure("opt") == ANSWER
