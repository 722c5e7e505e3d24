"""`npu-compiler show DIR`: renders dumps of NPU_COMPILE_DEBUG as a self-contained HTML page."""

from __future__ import annotations

import difflib
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import render_page
from npu_compiler.errors import DumpError

__all__ = ["main", "render", "write_page"]

_SUMMARY = "graph.json"
_TEMPLATE = Path(__file__).with_name("show.html")


def main(arguments: Sequence[str]) -> int:
    """Writes the page; returns the exit code."""
    parser = CommandParser(
        prog="npu-compiler show", description="Render dumps of NPU_COMPILE_DEBUG as an HTML page."
    )
    parser.add_argument("directory", type=Path, help="folder named by NPU_COMPILE_DEBUG")
    parser.add_argument(
        "-o", "--output", type=Path, help="output file (default: DIRECTORY/index.html)"
    )
    given = parser.parse_args(arguments)
    output = given.output or given.directory / "index.html"
    write_page(output, render(given.directory))
    print(output)
    return 0


def write_page(output: Path, page: str) -> None:
    """Writes a page to the file that --output names; [dump-output] if it cannot be written."""
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as failure:
        raise DumpError(
            f"{output} must be writable, got {failure.strerror}. Name another file with --output.",
            code="dump-output",
        ) from failure


def render(directory: Path) -> str:
    """Returns the page of a directory with a folder per captured graph.

    Raises [dump-absent] without dumps, [dump-damaged] for a summary that cannot be read.
    """
    found = sorted(directory.glob(f"*/{_SUMMARY}"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise DumpError(
            f"{directory} must be a folder with dumps of NPU_COMPILE_DEBUG, got none. "
            f"Run the program with NPU_COMPILE_DEBUG={directory} first.",
            code="dump-absent",
        )
    graphs = [_graph(path.parent, _read(path)) for path in found]
    return render_page(_TEMPLATE, directory=directory, graphs=graphs)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        return {key: content[key] for key in _KEYS}
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise DumpError(
            f"{path} must be a summary of NPU_COMPILE_DEBUG, got {failure!r}. Remove the folder "
            "and run the program again.",
            code="dump-damaged",
        ) from failure


_KEYS = ("name", "kind", "node_count", "programs", "eager", "passes", "stages", "rebuilds")


def _graph(place: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Returns the template's fields of a graph; a table is a list of rows."""
    eager_keys = ("name", "op", "reason", "source")
    return {
        "folder": place.name,
        "kind": summary["kind"],
        "node_count": summary["node_count"],
        "lowered": sum(program["node_count"] for program in summary["programs"]),
        "programs": [
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
        "eager": [tuple(node[key] or "" for key in eager_keys) for node in summary["eager"]],
        "passes": [
            (one["name"], one["stage"], one["count"], f"{one['time_s'] * 1e3:.1f}")
            for one in summary["passes"]
        ],
        "stages": list(_stages(place, summary["stages"])),
        "models": [(path.name, _operations(path)) for path in sorted(place.glob("program-*.xml"))],
    }


def _stages(place: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    before: list[str] | None = None
    for name in names:
        text = _lines(place / name)
        changed = before is not None and text != before
        yield {
            "title": name.removesuffix(".txt"),
            "length": len(text),
            "note": "" if before is None else (", changed" if changed else ", as before"),
            "lines": _difference(before, text)
            if before is not None and changed
            else [("", line) for line in text],
        }
        before = text


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as failure:
        return [f"({failure.strerror})"]


def _difference(before: list[str], after: list[str]) -> list[tuple[str, str]]:
    """Returns the lines of a diff, each with its CSS class."""
    styles = {"+": "more", "-": "less"}
    found = difflib.ndiff(before, after)
    return [(styles.get(line[0], ""), line) for line in found if not line.startswith("?")]


def _operations(model: Path) -> list[tuple[str, int]]:
    try:
        layers = ElementTree.parse(model).iter("layer")  # a file that this package wrote
        return Counter(str(layer.get("type")) for layer in layers).most_common()
    except (OSError, ElementTree.ParseError) as failure:
        return [(f"cannot be read: {failure}", 0)]
