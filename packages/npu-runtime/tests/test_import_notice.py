import io
import re
import sys
import time
import types

import pytest

from npu_command import output
from npu_command.import_notice import Imports, import_notice


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
