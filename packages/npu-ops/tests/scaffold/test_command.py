"""The subcommand `npu-ops new`."""

import pytest

from npu_ops.cli import main


def test_it_says_what_to_do_next(tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my_op"]) == 0
    text = capsys.readouterr().out
    assert "wrote 10 files to ./my_op" in text
    assert "python -m pip install --no-build-isolation ./my_op" in text
    assert "python ./my_op/benchmarks/time_my_op.py" in text


def test_a_wrong_name_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]):
    assert main(["new", "my-op"]) == 2
    assert capsys.readouterr().err.strip().endswith("[op-name]")
