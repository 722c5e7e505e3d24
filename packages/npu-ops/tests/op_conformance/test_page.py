import random

import pytest

from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.page import Facts, coverage_page
from npu_ops.op_conformance.report import read_csv, write_csv
from npu_ops.tolerances import EXPECTED

FACTS = Facts("2026-11-20", "npu-ops conformance", "torch 2.13.0", "openvino, CPU")
EXCEPTED = next(iter(EXPECTED))
CELLS = [
    Cell("fft_fft", "float32", "forward", Outcome.PASSED, 3),
    Cell("fft_ifft", "float32", "forward", Outcome.FAILED, 3, 1, "sample 2: too far off"),
    Cell("add", "int64", "forward", Outcome.PASSED, 5, programs=2, tolerance="5e-06"),
    Cell("add", "float32", "backward", Outcome.EMPTY),
    Cell("nn.Linear", "float64", "training", Outcome.PASSED, 2),
    Cell(EXCEPTED[0], EXCEPTED[1], EXCEPTED[2], Outcome.FAILED, 4, 1, "by design"),
]


def test_the_page_counts_by_family_and_dtype():
    page = coverage_page(CELLS, FACTS)
    assert "| `torch.fft` | 1 of 2 |" in page
    assert "| training | – | 1 of 1 |" in page
    assert "5 cells, 17 samples" in page


def test_the_page_names_what_failed_and_what_may():
    page = coverage_page(CELLS, FACTS)
    assert "`fft_ifft` float32 forward, failed: 1 of 3 samples" in page
    assert EXPECTED[EXCEPTED] in page
    assert f"`{EXCEPTED[0]}` {EXCEPTED[1]} forward, failed" not in page


@pytest.mark.parametrize("seed", range(3))
def test_the_page_does_not_depend_on_the_order_of_the_cells(seed):
    shuffled = random.Random(seed).sample(CELLS, len(CELLS))
    assert coverage_page(shuffled, FACTS) == coverage_page(CELLS, FACTS)


def test_cells_come_back_from_the_file(tmp_path):
    write_csv(CELLS, tmp_path / "cells.csv")
    assert read_csv(tmp_path / "cells.csv") == CELLS
