import argparse
import json
import math
from pathlib import Path

import pytest

from npu_command.answers import OUTPUT, add_json, give_answer, with_json_file
from npu_command.errors import FileAccessError
from npu_command.help.command_parser import CommandParser


@pytest.fixture
def said(capsys):
    """said(place, value): what give_answer prints where people would read "text"."""

    def run(place, value, **how):
        give_answer(place, value, lambda: print("text"), **how)
        return capsys.readouterr().out

    return run


def parser_with(*positionals):
    parser = CommandParser(prog="npu-x do")
    parser.add_argument("--by", metavar="NAME")
    add_json(parser)
    for name, options in positionals:
        parser.add_argument(name, **options)
    return parser


FILE = ("file", {})
MODEL = ("model", {"nargs": "?"})
SCRIPT = [("script", {}), ("arguments", {"nargs": argparse.REMAINDER})]


def test_an_answer_is_text_or_json_or_both(said, tmp_path):
    assert said(None, {"a": 1}) == "text\n"
    assert json.loads(said(OUTPUT, {"a": 1})) == {"a": 1}
    assert said(tmp_path / "x.json", {"a": 1}) == "text\n"
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}


def test_what_json_lacks_is_null_or_text(said):
    value = {"numbers": (math.nan, math.inf, 1.5), 2: Path("a")}
    assert json.loads(said(OUTPUT, value)) == {"numbers": [None, None, 1.5], "2": "a"}


def test_items_may_be_lines(said):
    assert said(OUTPUT, [{"a": 1}, {"a": 2}], is_lines=True) == '{"a": 1}\n{"a": 2}\n'


@pytest.mark.parametrize(
    "positionals, words, json_file, others",
    [
        ([], ["--json"], "-", []),
        ([], ["--json", "any name"], "any name", []),
        ([FILE], ["--json", "trace.json"], "-", ["trace.json"]),
        ([FILE], ["trace.json", "--json"], "-", ["trace.json"]),
        ([FILE], ["--json", "out.json", "trace.json"], "out.json", ["trace.json"]),
        ([FILE], ["trace.json", "--by", "op", "--json", "out.json"], "out.json", ["trace.json"]),
        ([FILE], ["--json", "--by", "op", "trace.json"], "-", ["trace.json"]),
        ([FILE], ["--json=out", "trace.json"], "out", ["trace.json"]),
        ([MODEL], ["--json", "model.gguf"], "-", ["model.gguf"]),
        ([MODEL], ["--json", "out.json"], "out.json", [None]),
        (SCRIPT, ["--json", "a.py", "--json", "x.json"], "-", ["a.py", ["--json", "x.json"]]),
        (SCRIPT, ["a.py", "x"], None, ["a.py", ["x"]]),
    ],
)
def test_what_stands_behind_json_is_told_apart(
    positionals, words, json_file, others, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = parser_with(*positionals).parse_args(words)
    assert options.json == (None if json_file is None else Path(json_file))
    assert [getattr(options, name) for name, _ in positionals] == others


def test_a_word_that_is_no_option_stays():
    assert with_json_file(parser_with(FILE), ["a", "-"]) == ["a", "-"]


@pytest.mark.parametrize("name", ["none/x.json", "folder"])
def test_a_file_that_cannot_be_is_refused(name, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileAccessError, match="Name another") as refused:
        parser_with().parse_args([f"--json={tmp_path / name}"])
    assert refused.value.code == "output-file"


def test_a_file_that_the_system_refuses_is_refused(tmp_path):
    with pytest.raises(FileAccessError) as refused:
        give_answer(tmp_path / "gone" / "x.json", {}, lambda: None)
    assert refused.value.code == "output-file"
