"""What commands' options have in common."""

import pytest

from npu_command.help.command_parser import CommandParser, port_number


@pytest.mark.parametrize("given", ["65536", "-1", "99999", "http"])
def test_a_port_that_none_has_is_an_error_of_usage(given, capsys):
    parser = CommandParser(prog="npu-llm serve")
    parser.add_argument("--port", type=port_number)
    assert parser.parse_args(["--port", "65535"]).port == 65535
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([f"--port={given}"])
    assert ended.value.code == 2
    assert given in capsys.readouterr().err
