import argparse
import io
import json
import math
import re
import sys
import time
import types
from pathlib import Path

import jinja2
import pytest

from npu_command import output
from npu_command.command_parser import CommandParser
from npu_command.errors import FileAccessError
from npu_command.output import (
    OUTPUT,
    Imports,
    add_json,
    aligned,
    give_answer,
    import_notice,
    render_page,
    with_json_file,
)


@pytest.fixture
def said(capsys):
    """said(place, value): the output of give_answer for the text "text"."""

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


def test_columns_stand_below_each_other_without_blanks_at_the_end():
    assert aligned([("a", "1", ""), ("long", "22", "x")]) == ["a     1", "long  22  x"]


def test_lines_are_indented():
    assert aligned([("a", "b")], indent=2) == ["  a  b"]


def test_the_last_column_goes_on_between_words():
    text = "a path/that/is/longer/than/the/width/of/it stays whole"
    assert aligned([("name", text), ("n", "x")], width=40) == [
        "name  a",
        "      path/that/is/longer/than/the/width/of/it",
        "      stays whole",
        "n     x",
    ]


def test_a_terminal_too_narrow_for_columns_wraps_them_itself():
    assert aligned([("name", "one two three")], width=20) == ["name  one two three"]


def test_what_is_put_in_is_escaped(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("<p>{{ text }}</p>\n")
    assert render_page(template, text="<script>'&") == "<p>&lt;script&gt;&#39;&amp;</p>\n"


def test_lines_of_statements_leave_nothing_on_the_page(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("<ul>\n  {% for one in many %}\n<li>{{ one }}\n  {% endfor %}\n</ul>\n")
    assert render_page(template, many=[1, 2]) == "<ul>\n<li>1\n<li>2\n</ul>\n"


def test_a_value_that_is_not_given_is_an_error(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("{{ absent }}")
    with pytest.raises(jinja2.UndefinedError, match="absent"):
        render_page(template)


class Stream(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Standard error from here on; not a fixture, after which pytest sets its own."""
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return stream


def test_a_long_import_is_told_and_the_line_is_gone_at_the_end(monkeypatch):
    stream = terminal(monkeypatch)
    end = time.monotonic() + 60
    with import_notice():
        while "importing slow." not in stream.getvalue() and time.monotonic() < end:
            name = f"slow.{'deep.' * 20}package_{time.monotonic_ns()}"
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
            time.sleep(0.05)
    first, *lines, last = stream.getvalue().split("\r\x1b[K")
    assert first == last == ""
    assert re.match(r"\d+ s: ", lines[0])
    assert "importing slow.deep.deep." in lines[-1]
    assert len(lines[-1]) == 59


def test_a_short_one_is_not_told(monkeypatch):
    stream = terminal(monkeypatch)
    with import_notice():
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize("place", ["no terminal", "dumb", "quiet"])
def test_nothing_is_told_where_nobody_reads_it(monkeypatch, place):
    stream = terminal(monkeypatch)
    if place == "no terminal":
        monkeypatch.setattr(stream, "isatty", lambda: False)
    elif place == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        monkeypatch.setattr(output, "_quiet", True)
    with import_notice():
        time.sleep(0.8)
    assert stream.getvalue() == ""


def test_imports_are_told_by_the_newest_module(monkeypatch):
    imports = Imports()
    assert imports.newest(since=time.perf_counter()) == ""
    monkeypatch.setitem(sys.modules, "some.package", types.ModuleType("some.package"))
    assert imports.newest() == f"importing some.package, {len(sys.modules):,} modules"
    assert imports.newest(since=time.perf_counter()) == ""
