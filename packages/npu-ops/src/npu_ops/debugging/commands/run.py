"""The subcommand ``npu-ops run``: runs an unchanged program under the requested tools.

Each tool has its module. `npu-profiler trace` records times without tools.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.command_parser import CommandParser
from npu_command.output import is_quiet
from npu_ops.errors import OperatorInputError

if TYPE_CHECKING:
    import torch

    from npu_ops.debugging.tool import OpTool

__all__ = ["main"]

_DESCRIPTION = """\
Run a Python program, unchanged, under op tools. By default each tool takes all ops; OP_<TOOL>_LIST
and OP_<TOOL>_DISABLE_LIST, or --ops and --except, select and exclude ops. Reports go to standard
error and, with -o, to CSV and HTML files. The exit code is the program's; if that is 0, it is 1
when an op differs or overflows."""


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand; returns its exit code."""
    options = _read(arguments)
    tools = _tools(options)
    with ExitStack() as stack:
        for tool in tools.values():
            stack.enter_context(tool)
        code = _run(options.program, is_module=options.is_module)
    for name, tool in tools.items():
        report = tool.report()
        if not is_quiet():
            print(f"\nnpu-ops run: {report.title}\n{report.table(options.rows)}", file=sys.stderr)
        if options.output is not None:
            for file in report.write(options.output, name):
                if not is_quiet():
                    print(f"wrote {file}", file=sys.stderr)
    return code or (0 if all(tool.passed for tool in tools.values()) else 1)


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="npu-ops run",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="npu-ops run [TOOL ...] [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        check=lambda options: _check(parser, options),
    )
    tools = parser.add_argument_group("tools")
    tools.add_argument("--autocompare", action="store_true", help="compare with the CPU in float64")
    tools.add_argument("--capture", action="store_true", help="write each call to -o DIR/captures")
    tools.add_argument("--time", action="store_true", help="measure each op")
    tools.add_argument("--fallback", action="store_true", help="run ops on the CPU")
    tools.add_argument(
        "--overflow", action="store_true", help="find the origin of NaN and infinity"
    )
    tools.add_argument("--cast", metavar="DTYPE", help="compute in this dtype, such as float64")
    tools.add_argument(
        "--observe", type=int, choices=(1, 2, 3), help="log each call: names, shapes, values"
    )
    parser.add_argument("--ops", metavar="A,B", help="names or patterns of the ops to select")
    parser.add_argument("--except", dest="excluded", metavar="A,B", help="ops to exclude")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="take one call of an op in N"
    )
    parser.add_argument(
        "--per-signature", type=int, metavar="N", help="maximum calls per signature"
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=2**30,
        metavar="BYTES",
        help="maximum size of captures (default: 1 GiB)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="output directory of reports and captures"
    )
    parser.add_argument(
        "--rows", type=int, default=20, metavar="N", help="maximum rows to print (20)"
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if not options.program:
        parser.error("a script, or -m and a module, must follow the options")
    # os.path takes any text; Path raises for a name that is too long.
    if not options.is_module and not os.path.exists(options.program[0]):  # noqa: PTH110
        raise OperatorInputError(
            f"script must be an existing file, got {options.program[0]}. Check the path, or use -m "
            f"for a module.",
            code="script-missing",
        )
    if options.capture and options.output is None:
        parser.error("--capture needs -o DIR")


def _tools(options: argparse.Namespace) -> dict[str, OpTool]:
    """Returns the tools by report name; tools that change calls come before observers.

    The tool entered last sees a call first: it compares or captures the call as the earlier tools
    change it.
    """
    from npu_ops.debugging.autocompare import OpAutoCompare  # late: help does not need torch
    from npu_ops.debugging.capture import OpCapture
    from npu_ops.debugging.observe import OpObserve, OpTimeMeasure
    from npu_ops.debugging.overflow_check import OpOverflowCheck
    from npu_ops.debugging.override import OpDtypeCast, OpFallback

    output: Path | None = options.output
    names, excluded = (_list(text) for text in (options.ops, options.excluded))
    sampling = {"every": options.every, "per_signature": options.per_signature}
    tools: dict[str, OpTool] = {}
    if options.fallback:
        tools["fallback"] = OpFallback(names, excluded)
    if options.cast is not None:
        tools["cast"] = OpDtypeCast(names, excluded, dtype=_dtype(options.cast))
    if options.time:
        tools["time"] = OpTimeMeasure(names, excluded, **sampling)
    if options.observe is not None:
        tools["observe"] = OpObserve(
            names, excluded, level=options.observe, stream=sys.stderr, **sampling
        )
    if options.overflow:
        tools["overflow"] = OpOverflowCheck(names, excluded, **sampling)
    if options.capture:
        assert output is not None
        tools["capture"] = OpCapture(
            output / "captures", names, excluded, budget_bytes=options.budget, **sampling
        )
    if options.autocompare:
        tools["autocompare"] = OpAutoCompare(
            names,
            excluded,
            captures=None if output is None else output / "differences",
            budget_bytes=options.budget,
            **sampling,
        )
    return tools


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise OperatorInputError(
            f"--cast must be a dtype of torch, got {name!r}. Pass one such as float64 or bfloat16.",
            code="tool-option",
        )
    return found


def _run(program: list[str], *, is_module: bool) -> int:
    """Runs the program as Python itself would; returns its exit code."""
    name, path = program[0], sys.path[0]
    sys.argv[:] = program
    try:
        if is_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(name).resolve().parent)
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except (ImportError, OSError) as error:
        if not _is_of_runpy(error):
            traceback.print_exc()
            return 1
        raise OperatorInputError(
            f"`{'-m' if is_module else 'script'}` must be a program that Python can run, got "
            f"{name}: "
            f"{str(error).rstrip('.')}. Check the name; pass a script without -m.",
            "module-missing" if is_module else "script-missing",
        ) from error
    except Exception:  # noqa: BLE001  # the program's own; the reports follow it
        traceback.print_exc()
        return 1
    finally:
        sys.path[0] = path
    return 0


def _is_of_runpy(error: BaseException) -> bool:
    """Whether the error occurred before the first line of the program."""
    ours = {code.co_filename for code in (_run.__code__, runpy.run_path.__code__)}
    return all(
        frame.f_code.co_filename in ours for frame, _ in traceback.walk_tb(error.__traceback__)
    )
