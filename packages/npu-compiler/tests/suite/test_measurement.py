"""One architecture measured, and how errors are counted."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable

import pytest
import torch

from npu_command.children import Child
from npu_compiler.errors import SuiteError
from npu_compiler.suite import Architecture, find, measurement
from npu_compiler.suite.families.architecture import coinciding
from npu_compiler.suite.measurement import (
    Measurement,
    _eager,
    _rounding,
    measure,
    relative_error,
    tensors_of,
)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": torch.relu(self.layer(x))}


class Breaking(Net):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return {"logits": torch.relu(y)}


def small(build: type[torch.nn.Module]) -> Architecture:
    return Architecture("net", "vision", build, lambda: {"x": torch.randn(2, 8)})


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_a_model_of_known_ops_is_whole(device):
    found = measure(small(Net), device=device)
    assert found.is_whole
    assert (found.programs, found.graphs, found.graph_breaks) == (1, 1, 0)
    assert found.nodes == found.lowered > 0
    assert 0 <= found.error < 1e-5
    assert found.compile_time_s > 0


def test_a_graph_break_is_counted_and_told():
    found = measure(small(Breaking))
    assert found.is_right
    assert not found.is_whole
    assert found.graph_breaks == 1
    assert found.graphs == 2
    assert "graph break" in found.detail


def test_a_measurement_survives_its_line():
    found = Measurement("a", "vision", programs=1, error=1e-7, finished=True, detail='a "b"')
    assert Measurement.from_json(found.to_json()) == found


def test_an_error_above_the_bound_is_wrong():
    right = Measurement("a", "vision", error=9e-5, finished=True)
    assert right.is_right
    assert not dataclasses.replace(right, error=2e-4).is_right
    assert not dataclasses.replace(right, error=float("nan")).is_right
    assert not dataclasses.replace(right, finished=False).is_right


def test_a_model_that_multiplies_roundings_is_right_as_far_as_eager_is_off() -> None:
    row = Measurement("a", "vision", error=2.8e-3, rounding=1.7e-3, finished=True)
    assert row.is_right
    assert not dataclasses.replace(row, error=6e-3).is_right
    assert not dataclasses.replace(row, rounding=0.0).is_right
    assert not dataclasses.replace(row, rounding=2e-2).is_right
    assert not dataclasses.replace(row, rounding=float("inf"), error=float("inf")).is_right
    assert not dataclasses.replace(row, rounding=float("nan")).is_right


class Steep(Net):
    """Takes the difference of large numbers, and is off by much in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(self.layer(x))
        return torch.log((y + 1e3).cumsum(-1)).diff() * y.new_ones(3)


class Single(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).float()


def test_rounding_is_eagers_distance_from_float64() -> None:
    row = small(Steep)
    with torch.no_grad():
        model, inputs, expected = _eager(row, 0, None)
        exact = model.double()(**{name: value.double() for name, value in inputs.items()})
    wanted = float((expected[0] - exact).abs().max() / exact.abs().max())
    assert _rounding(row, 0, None, expected) == pytest.approx(wanted)
    assert wanted > 1e-8


def test_rounding_is_not_known_of_a_model_that_computes_in_float32_itself() -> None:
    row = small(Single)
    assert _rounding(row, 0, None, _eager(row, 0, None)[2]) == 0


def test_error_is_relative_to_the_largest_magnitude():
    expected = [torch.tensor([1.0, -4.0]), torch.tensor([2])]
    assert relative_error([torch.tensor([1.0, -4.4]), torch.tensor([2])], expected) == (
        pytest.approx(0.1)
    )


@pytest.mark.parametrize(
    "result",
    [
        [],
        [torch.tensor([1.0, float("nan")])],
        [torch.tensor([1.0, 2.0], dtype=torch.float64)],
        [torch.tensor([[1.0, 2.0]])],
    ],
    ids=["missing", "nan", "dtype", "shape"],
)
def test_error_is_infinite_where_results_cannot_be_compared(result):
    assert relative_error(result, [torch.tensor([1.0, 2.0])]) == float("inf")


def test_an_integer_that_differs_is_infinitely_wrong():
    assert relative_error([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == float("inf")


def test_infinities_in_the_same_place_are_equal():
    x = torch.tensor([1.0, float("-inf"), float("nan")])
    assert relative_error([x.clone()], [x]) == 0
    assert relative_error([torch.tensor([1.0, float("inf"), float("nan")])], [x]) == float("inf")


def test_tensors_are_found_in_nested_outputs():
    a, b = torch.ones(1), torch.ones(2)
    assert tensors_of({"x": (a, None), "y": [b]}) == [a, b]


def test_a_draw_has_sizes_that_coincide() -> None:
    sizes = coinciding(0)
    assert sizes.length == 4  # as many tokens as heads
    assert coinciding(0) == sizes
    assert len({coinciding(seed) for seed in range(8)}) > 3


def test_three_draws_meet_heads_rows_and_channels_of_a_head() -> None:
    first, second, third = map(coinciding, range(3))
    assert first.length == first.heads == first.batch == 4
    assert second.length == second.heads == second.batch == 64 // second.heads
    assert third.length == 64 // third.heads


def test_sizes_that_torch_refuses_are_left_out() -> None:
    def build() -> torch.nn.Module:
        return Net()

    def refused() -> dict[str, torch.Tensor]:
        raise ValueError("sizes do not fit")

    with pytest.raises(SuiteError, match="sizes do not fit") as failure:
        measure(Architecture("net", "encoder", build, refused), device="cpu", draw=0)
    assert failure.value.code == "suite-sizes"
    row = Measurement("net", "encoder", detail=str(failure.value), draw=0)
    assert row.is_left_out
    assert not Measurement("net", "encoder", detail="SIGSEGV").is_left_out


def test_a_missing_library_is_not_a_draw_left_out() -> None:
    def build() -> torch.nn.Module:
        raise SuiteError("npu_compiler.suite: no timm.", code="suite-timm")

    with pytest.raises(SuiteError) as failure:
        measure(Architecture("net", "timm", build, dict), device="cpu", draw=0)
    assert failure.value.code == "suite-timm"


def test_a_false_alarm_is_not_right() -> None:
    row = Measurement("net", "encoder", error=0.0, finished=True, false_alarm="differed")
    assert not row.is_right


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
        return lambda name: measurement.measure_in(
            child, find(name), device="npu", timeout_s=timeout_s
        )

    yield put
    for child in children:
        child.stop()


def test_models_are_measured_one_after_the_other_in_the_order_given():
    shown: list[Measurement] = []
    chosen = [find("opt"), find("resnet")]
    rows = measurement.run_all(
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

    child = measurement.make_child(device="cpu", seed=0, timeout_s=300)
    try:
        row = measurement.measure_in(child, Missing, device="cpu", timeout_s=300)
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
