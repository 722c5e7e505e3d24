"""The command: its output, files and exit code."""

from __future__ import annotations

import pytest

from npu_compiler.suite import __main__ as command
from npu_compiler.suite.measurement import Measurement
from npu_compiler.suite.report import read_csv

RIGHT = Measurement("opt", "text decoder", "npu", graphs=1, programs=1, nodes=2, lowered=2,
                    error=0.0, finished=True)  # fmt: skip
WRONG = Measurement("opt", "text decoder", "npu", error=1.0, finished=True)


@pytest.fixture
def runs(monkeypatch):
    """Puts rows in place of the children's."""

    def put(*rows: Measurement) -> list:
        asked: list = []

        def run_all(chosen, *, on_row, **arguments):
            asked.extend(row.name for row in chosen)
            for row in rows:
                on_row(row)
            return list(rows)

        monkeypatch.setattr(command, "run_all", run_all)
        return asked

    return put


def test_all_right_is_exit_code_0(runs, capsys):
    asked = runs(RIGHT)
    assert command.main(["--only", "opt"]) == 0
    assert asked == ["opt"]
    assert "1 architectures: 1 right" in capsys.readouterr().out


def test_a_wrong_one_is_exit_code_1(runs, capsys):
    runs(RIGHT, WRONG)
    assert command.main(["--family", "encoder"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_csv_and_page_are_written(runs, tmp_path):
    runs(RIGHT)
    rows, page = tmp_path / "rows.csv", tmp_path / "page.md"
    command.main(["--only", "opt", "--csv", str(rows), "--page", str(page)])
    assert read_csv(rows) == [RIGHT]
    assert "| opt | 0 | 1 | 1 | 2 of 2 (100%)" in page.read_text()


@pytest.mark.parametrize("arguments", [["--only", "opd"], ["--family", "x"]], ids=str)
def test_an_unknown_name_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2
    assert "[suite-name]" in capsys.readouterr().err
