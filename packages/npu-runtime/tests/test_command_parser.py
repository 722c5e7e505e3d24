"""Common behaviour of commands' options."""

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
    "word, near",
    [
        ("--generatoin", "--generation"),
        ("--generatoin=3", "--generation"),
        ("--max-tokens", "--max-new-tokens"),
        ("--maxnew", "--max-new-tokens"),
        ("--max_new_tokens", "--max-new-tokens"),
        ("--tp-p", "--top-p"),
        ("--top", "--top-p or --top-k"),
        ("--tokenizer", None),  # nothing is near
        ("--zzz", None),
        ("-z", None),
    ],
)
def test_an_unknown_option_is_reported_with_the_ones_near_it(word, near, capsys):
    parser = CommandParser(prog="npu-x y", allow_abbrev=False)
    for name in ("--generation", "--max-new-tokens", "--top-p", "--top-k"):
        parser.add_argument(name)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([word, "value"])
    assert ended.value.code == 2
    advice = f". Did you mean {near}?" if near else ""
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown == f"npu-x y: error: unknown option {word.partition('=')[0]}{advice}"
