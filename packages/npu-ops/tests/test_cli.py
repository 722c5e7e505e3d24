import pytest

from npu_ops.cli import main


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform"]) == 2
    text = capsys.readouterr().err
    assert "no command 'conform'" in text
    assert "conformance" in text


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.count("usage: npu-ops [--no-color] COMMAND") == 2
