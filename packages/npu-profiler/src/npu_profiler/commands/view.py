"""`npu-profiler view`: opens a trace as a browser page, without network."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser, port_number
from npu_profiler.commands.options import add_file, say
from npu_profiler.output_file import write_bytes
from npu_profiler.reading import check_trace, load_trace
from npu_profiler.reports.page.view import build_page, open_browser, serve
from npu_profiler.reports.pictures import check_picture

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    target = check_picture(arguments.output, formats=(".html",)) if arguments.output else None
    if target is None:
        check_trace(arguments.file)
        serve(Path(arguments.file), arguments.port, say=say, is_opened=arguments.open)
        return 0
    page = build_page(load_trace(arguments.file))
    write_bytes(target, page.encode(), "page")
    say(f"wrote {target} ({len(page) / 1e6:,.1f} MB): open it in a browser")
    if arguments.open:
        open_browser(target.absolute().as_uri(), say=say)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler view",
        description="Shows a trace as a page: a timeline, tables and curves of memory. The page "
        "works without network access and is served only to this machine.",
    )
    add_file(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--port",
        type=port_number,
        default=0,
        metavar="N",
        help="port on 127.0.0.1 (default: any free port)",
    )
    where.add_argument(
        "-o", "--output", metavar="PAGE.html", help="write the page to a file instead"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    return parser
