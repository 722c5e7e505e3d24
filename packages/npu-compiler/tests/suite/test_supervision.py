"""Architectures in child processes: however a child ends, there is a row."""

from __future__ import annotations

import contextlib
import sys
import textwrap

import pytest

from npu_compiler.suite import find, supervision
from npu_compiler.suite.measurement import Measurement

ANSWER = Measurement("opt", "text decoder", programs=1, error=0.0, finished=True)


@pytest.fixture
def child():
    """A child that runs a script, with `name` the architecture's, in place of the measurement."""
    with contextlib.ExitStack() as stack:

        def put(body: str, timeout_s: float = 60) -> supervision.Child:
            made = supervision.Child(device="npu", seed=0, timeout_s=timeout_s)
            script = (
                "import json, os, sys, time\n"
                f"row = json.dumps({{'row': {ANSWER.to_json()!r}}})\n"
                "for line in sys.stdin:\n    name, _ = json.loads(line)\n"
                + textwrap.indent(body, "    ")
                + "\n    print(row, flush=True)\n"
            )
            made._command = [sys.executable, "-c", script]
            stack.enter_context(contextlib.closing(made))
            return made

        yield put


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


def test_an_exception_is_a_row(monkeypatch):
    class Missing:
        name, family = "no_such_model", "encoder"

    made = supervision.Child(device="cpu", seed=0, timeout_s=300)
    with contextlib.closing(made):
        row = made.measure(Missing)
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
def test_a_child_that_ends_badly_is_a_row_and_the_next_goes_on(child, body, detail):
    made = child(f"if name == 'bert':\n    {body}")
    row = made.measure(find("bert"))
    assert (row.name, row.family, row.finished, row.is_right) == ("bert", "encoder", False, False)
    assert row.detail == detail
    assert made.measure(find("opt")) == ANSWER


def test_a_child_that_hangs_is_a_row(child):
    made = child("if name == 'bert':\n    time.sleep(60)", timeout_s=2)
    assert made.measure(find("bert")).detail == "no result after 2 s"
    assert made.measure(find("opt")) == ANSWER
