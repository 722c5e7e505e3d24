import pytest
import torch

from npu_profiler import sweeps
from npu_profiler.roofline.peaks import Peaks
from npu_profiler.sweeps import Measurement, Sweep, Workload, measure

CPU = torch.device("cpu")


def sweep(make, *, sizes=((4, 8, 2),), dtypes=(torch.float32,)):
    return Sweep(make, sizes, dtypes, ["eager"], CPU, 0.01)


def test_each_combination_is_measured():
    found = list(
        measure(sweep(sweeps.matmul, sizes=[(4, 8, 2), (2, 2, 2)], dtypes=[torch.float32,
                                                                             torch.bfloat16]))
    )  # fmt: skip
    assert [(one.sizes, one.dtype) for one in found] == [
        ((4, 8, 2), "float32"),
        ((4, 8, 2), "bfloat16"),
        ((2, 2, 2), "float32"),
        ((2, 2, 2), "bfloat16"),
    ]
    assert all(one.runs >= 5 and one.time_ns > 0 for one in found)
    assert (found[0].flops, found[0].size_bytes) == (2 * 4 * 8 * 2, 4 * (32 + 16 + 8))
    assert found[1].size_bytes == found[0].size_bytes / 2


def test_the_network_computes_what_its_operations_count():
    work = sweeps.mlp((2, 8, 16), torch.float32, CPU)
    with torch.no_grad():
        assert work.function(*work.inputs).shape == (2, 8)
    assert work.flops == 3 * 2 * 2 * 8 * 16
    assert work.size_bytes == 4 * (3 * 8 * 16 + 2 * 2 * 8)


def test_what_does_not_run_is_a_row_with_its_reason():
    def fail():
        raise RuntimeError("no such dtype here\nmore")

    found = list(measure(sweep(lambda *_: Workload(fail, (), 1, 1))))
    assert [(one.time_ns, one.problem) for one in found] == [(None, "no such dtype here")]
    table = sweeps.to_table(found, None, title="t")
    assert table.rows[0][3] is None
    assert sweeps.notes(found, None) == ["4x8x2 float32 eager did not run: no such dtype here"]


def test_rows_are_held_against_the_peaks():
    peaks = Peaks("x", 1e9, {"f32": 1e9})
    rows = [
        Measurement((1, 1, 1), "float32", "eager", 4000.0, 5, flops=1000, size_bytes=10),
        Measurement((1, 1, 1), "float32", "compiled", 50.0, 5, flops=10, size_bytes=100),
        Measurement((1, 1, 1), "float16", "eager", 50.0, 5, flops=10, size_bytes=100),
    ]
    found = sweeps.records(rows, peaks)
    assert [(one["peak_share"], one["bound"]) for one in found] == [
        (pytest.approx(0.25), "compute"),
        (pytest.approx(2.0), "memory"),
        (None, None),
    ]
    assert "cache" in sweeps.notes(rows, peaks)[-1]
    assert sweeps.draw_sweep(rows, title="t").svg().startswith("<svg")
