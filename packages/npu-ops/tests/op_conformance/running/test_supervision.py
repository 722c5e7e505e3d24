"""A task that a child cannot do is an error of the run, not a failure of the device."""

import json

import pytest

from npu_ops.errors import ConformanceError
from npu_ops.op_conformance.running import supervision, worker


class ChildHere:
    """A child without a process."""

    def __init__(self, module, **_):
        pass

    def give(self, task):
        self._answer = json.loads(json.dumps(worker._answer(task)))

    def answer(self):
        return self._answer

    def stop(self):
        pass


def test_an_error_of_a_task_ends_the_run_with_its_code(monkeypatch, tmp_path):
    monkeypatch.setattr(supervision, "Child", ChildHere)
    (case, *_) = worker.interface_cases()
    task = {
        "suite": "interface",
        "case": case,
        "device": "cpu",
        "baseline": str(tmp_path),
        "rules": "",
        "checks": [],
    }
    answers = []
    with pytest.raises(ConformanceError, match="a directory with baseline") as caught:
        supervision.run_tasks(
            [task, task], jobs=1, timeout_s=1, environment={}, on_cells=answers.append
        )
    assert caught.value.code == "conformance-baseline"
    assert str(caught.value).count("[conformance-baseline]") == 1
    assert answers == []
