"""`npu-compiler show DIR`: what NPU_COMPILE_DEBUG wrote, as one HTML page that needs no network.

Writing the dumps is npu_compiler.debug's work.
"""

from __future__ import annotations

import argparse
import difflib
import html
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npu_compiler.errors import DumpError

__all__ = ["main", "render"]

_SUMMARY = "graph.json"
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color: #1c2430; background: #fff; }
h1 { font-size: 1.5rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d6dce5; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; margin: .4rem 0; }
th, td { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; }
th { color: #5a6778; font-weight: 600; border-bottom: 1px solid #d6dce5; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: #f5f7fa; padding: .7rem; overflow-x: auto; font-size: 12.5px; line-height: 1.4; }
summary { cursor: pointer; } .more { background: #dff5e1; } .less { background: #fbe3e1; }
@media (prefers-color-scheme: dark) {
  body { color: #dde3ec; background: #14181f; } pre { background: #1d232d; }
  th { color: #93a1b5; } .more { background: #173d23; } .less { background: #4a1f1d; } }
"""


def main(arguments: Sequence[str]) -> int:
    """Writes the page; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="npu-compiler show", description="Render the dumps of NPU_COMPILE_DEBUG as HTML."
    )
    parser.add_argument("directory", type=Path, help="what NPU_COMPILE_DEBUG named")
    parser.add_argument("-o", "--output", type=Path, help="file to write; DIRECTORY/index.html")
    given = parser.parse_args(arguments)
    output = given.output or given.directory / "index.html"
    page = render(given.directory)
    try:
        output.write_text(page)
    except OSError as failure:
        raise DumpError(
            f"{output}: the page must be writable; got {failure.strerror}. Name another file "
            "with --output.",
            code="dump-output",
        ) from failure
    print(output)
    return 0


def render(directory: Path) -> str:
    """Returns the page of a directory with dumps.

    Args:
        directory: with one folder per captured graph.

    Raises:
        DumpError: [dump-absent] there is no dump in it, [dump-damaged] a summary cannot be read.
    """
    found = sorted(directory.glob(f"*/{_SUMMARY}"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise DumpError(
            f"{directory}: a directory that NPU_COMPILE_DEBUG named; got none of its dumps there. "
            f"Run the program with NPU_COMPILE_DEBUG={directory} first.",
            code="dump-absent",
        )
    parts = ["<!doctype html><html lang='en'><meta charset='utf-8'>"]
    parts += ["<title>npu-compiler</title><style>", _STYLE, "</style>"]
    parts.append(f"<h1>{len(found)} compiled graphs in {html.escape(str(directory))}</h1>")
    for path in found:
        parts.extend(_graph(path.parent, _read(path)))
    return "\n".join(parts) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        return {key: content[key] for key in _KEYS}
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise DumpError(
            f"{path}: a summary as NPU_COMPILE_DEBUG writes it; got {failure!r}. Remove the folder "
            "and run the program again.",
            code="dump-damaged",
        ) from failure


_KEYS = ("name", "kind", "node_count", "programs", "eager", "passes", "stages", "rebuilds")


def _graph(place: Path, summary: dict[str, Any]) -> Iterator[str]:
    lowered = sum(program["node_count"] for program in summary["programs"])
    yield f"<h2>{html.escape(place.name)}</h2>"
    yield (
        f"<p>{summary['kind']}: {lowered} of {summary['node_count']} calls in "
        f"{len(summary['programs'])} programs.</p>"
    )
    if summary["programs"]:
        yield "<h3>Programs</h3>"
        yield _table(
            ("program", "calls", "weights MB", "precision", "lower s", "compile s", "from cache"),
            [
                (
                    program["name"],
                    program["node_count"],
                    f"{program['constant_bytes'] / 1e6:.1f}",
                    program["precision"],
                    f"{program['lower_time_s']:.3f}",
                    f"{program['compile_time_s']:.3f}",
                    "yes" if program["from_cache"] else "no",
                )
                for program in summary["programs"]
            ],
        )
    if summary["eager"]:
        yield "<h3>Runs eagerly</h3>"
        keys = ("name", "op", "reason", "source")
        rows = [tuple(node[key] or "" for key in keys) for node in summary["eager"]]
        yield _table(("node", "op", "because", "source"), rows)
    if summary["passes"]:
        yield "<h3>Passes that rewrote something</h3>"
        yield _table(
            ("pass", "stage", "places", "ms"),
            [(p["name"], p["stage"], p["count"], f"{p['time_s'] * 1e3:.1f}")
             for p in summary["passes"]],
        )  # fmt: skip
    yield "<h3>Stages</h3>"
    yield from _stages(place, summary["stages"])
    for model in sorted(place.glob("program-*.xml")):
        yield f"<details><summary>{html.escape(model.name)}: OpenVINO model</summary>"
        yield _table(("operation", "count"), _operations(model)) + "</details>"


def _stages(place: Path, names: Sequence[str]) -> Iterator[str]:
    before: list[str] | None = None
    for name in names:
        text = _lines(place / name)
        changed = before is not None and text != before
        title = html.escape(name.removesuffix(".txt"))
        note = "" if before is None else (", changed" if changed else ", as before")
        yield f"<details><summary>{title}: {len(text)} lines{note}</summary><pre>"
        if before is not None and changed:
            yield "\n".join(_difference(before, text))
        else:
            yield html.escape("\n".join(text))
        yield "</pre></details>"
        before = text


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as failure:
        return [f"({failure.strerror})"]


def _difference(before: list[str], after: list[str]) -> Iterator[str]:
    for line in difflib.ndiff(before, after):
        if line.startswith("?"):
            continue
        style = {"+": " class='more'", "-": " class='less'"}.get(line[0], "")
        yield f"<span{style}>{html.escape(line)}</span>"


def _operations(model: Path) -> list[tuple[str, int]]:
    try:
        layers = ElementTree.parse(model).iter("layer")  # a file that we wrote
        return Counter(str(layer.get("type")) for layer in layers).most_common()
    except (OSError, ElementTree.ParseError) as failure:
        return [(f"cannot be read: {failure}", 0)]


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = [f"<table><tr>{cells}</tr>"]
    for row in rows:
        inside = "".join(f"<td{_align(value)}>{html.escape(str(value))}</td>" for value in row)
        lines.append(f"<tr>{inside}</tr>")
    return "\n".join([*lines, "</table>"])


def _align(value: Any) -> str:
    return " class='n'" if isinstance(value, (int, float)) else ""
