"""What commands' options have in common."""

import pytest

from npu_command.command_parser import CommandParser, port_number


@pytest.mark.parametrize("given", ["65536", "-1", "99999", "http"])
def test_a_port_that_none_has_is_an_error_of_usage(given, capsys):
    parser = CommandParser(prog="npu-llm serve")
    parser.add_argument("--port", type=port_number)
    assert parser.parse_args(["--port", "65535"]).port == 65535
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([f"--port={given}"])
    assert ended.value.code == 2
    assert given in capsys.readouterr().err


@pytest.mark.parametrize(
    "word, said",
    [("--generatoin", "--generation"), ("--generatoin=3", "--generation"), ("--zzz", None)],
)
def test_an_unknown_option_is_told_with_the_nearest_one(word, said, capsys):
    parser = CommandParser(prog="npu-x y")
    parser.add_argument("--generation")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([word])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert word in error
    assert ("nearest option" in error) is (said is not None)
    assert said is None or error.rstrip().endswith(said)
