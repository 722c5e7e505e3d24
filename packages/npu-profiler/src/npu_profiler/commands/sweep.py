"""Options, measurement, table and chart of `npu-profiler matmul` and `npu-profiler mlp`."""

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_profiler.commands.options import say
from npu_profiler.errors import TraceError
from npu_profiler.reports.pictures import check_target, write_picture
from npu_profiler.reports.tables import format_table

if TYPE_CHECKING:
    import torch

    from npu_profiler.roofline.peaks import Peaks
    from npu_profiler.sweeps import Measurement

__all__ = ["SweepCommand", "add_outputs", "run_sweep"]


class SweepCommand(NamedTuple):
    """The parameters of one sweep command."""

    name: str  # of the subcommand, and of the function in `npu_profiler.sweeps`
    description: str  # for its help
    sizes: Sequence[str]  # names of the sizes: "M", "K", "N"
    default: str  # of --sizes
    is_square: bool  # whether one number sets all sizes


def run_sweep(command: SweepCommand, words: Sequence[str]) -> int:
    """Measures, prints and draws by the arguments; returns 0, or 1 if nothing ran."""
    arguments = _parser(command).parse_args(words)
    sizes = [_read_sizes(text, command) for text in arguments.sizes.split(",")]
    if not 0 < arguments.seconds < math.inf:
        raise TraceError(
            f"`--seconds` must be above 0, got {arguments.seconds}. Pass, for example, 0.5.",
            code="sweep-option",
        )
    picture = check_target(arguments.plot) if arguments.plot else None

    # late: a mistyped option should not wait for torch
    from npu_profiler import sweeps

    sweep = sweeps.Sweep(
        make=getattr(sweeps, command.name),
        sizes=sizes,
        dtypes=[_dtype(name) for name in arguments.dtypes.split(",")],
        modes=_modes(arguments.modes, arguments.device),
        device=_device(arguments.device),
        seconds=arguments.seconds,
    )
    peaks = _peaks(arguments, sweep.device)
    about = f"{command.name} on {arguments.device}"
    measured: list[Measurement] = []
    for one in sweeps.measure(sweep):
        measured.append(one)
        say(f"measured {one.size} {one.dtype} {one.mode}")
    lines = [] if peaks is None else [*peaks.lines(), ""]
    lines += format_table(sweeps.to_table(measured, peaks, title=f"{about}, median of the calls"))
    lines += sweeps.notes(measured, peaks)
    document = {
        "command": command.name,
        "device": arguments.device if peaks is None else peaks.device,
        "peak_bytes_per_s": None if peaks is None else peaks.bytes_per_s,
        "peak_flops_per_s": None if peaks is None else dict(peaks.flops_per_s),
        "records": sweeps.records(measured, peaks),
    }
    give_answer(arguments.json, document, lambda: print("\n".join(lines)))
    if picture is not None:
        write_picture(picture, sweeps.draw_sweep(measured, title=about))
    return 0 if any(one.runs for one in measured) else 1


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds --json and --plot."""
    add_json(parser)
    parser.add_argument("--plot", metavar="PICTURE", help="draw a chart: .svg, .png or .html")


def _parser(command: SweepCommand) -> argparse.ArgumentParser:
    parser = CommandParser(prog=f"npu-profiler {command.name}", description=command.description)
    shape = "x".join(command.sizes)
    short = ", or one number for all of them" if command.is_square else ""
    parser.add_argument(
        "--sizes",
        default=command.default,
        metavar=f"{shape},...",
        help=f"{shape}{short} (default: %(default)s)",
    )
    parser.add_argument(
        "--dtypes",
        default="float32,bfloat16,float16",
        metavar="D,D",
        help="dtypes by torch's names (default: %(default)s)",
    )
    parser.add_argument(
        "--modes",
        metavar="M,M",
        help="eager, compiled (default: both; compiled only with npu-compiler)",
    )
    parser.add_argument(
        "--device", default="npu", help="npu, npu:1 or cpu for comparison (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.5,
        help="seconds of repeating each: at least five times, except for calls longer than ten "
        "times this (default: %(default)s)",
    )
    parser.add_argument("--no-peaks", action="store_true", help="do not measure the device's peaks")
    add_outputs(parser)
    return parser


def _read_sizes(text: str, command: SweepCommand) -> tuple[int, ...]:
    parts = text.strip().split("x")
    if len(parts) == 1 and command.is_square:
        parts = parts * len(command.sizes)
    if len(parts) == len(command.sizes) and all(part.isdecimal() for part in parts):
        sizes = tuple(map(int, parts))
        if all(0 < size < 1 << 24 for size in sizes):
            return sizes
    raise TraceError(
        f"`--sizes` must be {'x'.join(command.sizes)} in whole numbers above 0, got {text!r}. "
        f"Pass, for example, {command.default}.",
        code="sweep-option",
    )


def _dtype(name: str) -> "torch.dtype":
    import torch

    from npu_profiler.sweeps import PRECISIONS

    if name.strip() not in PRECISIONS:
        raise TraceError(
            f"`--dtypes` must be among {', '.join(PRECISIONS)}, got {name!r}. Choose from these.",
            code="sweep-option",
        )
    dtype: torch.dtype = getattr(torch, name.strip())
    return dtype


def _modes(text: str | None, device: str) -> list[str]:
    from npu_profiler.sweeps import MODES, has_backend

    can_compile = device != "cpu" and has_backend()
    if text is None:
        if device != "cpu" and not can_compile:
            say("eager only: torch.compile knows no backend npu. Install npu-compiler for it")
        return list(MODES) if can_compile else ["eager"]
    modes = [mode.strip() for mode in text.split(",")]
    if not set(modes) <= set(MODES):
        raise TraceError(
            f"`--modes` must be among {', '.join(MODES)}, got {text!r}. Choose from these.",
            code="sweep-option",
        )
    if "compiled" in modes and not can_compile:
        raise TraceError(
            f"--modes: compiled requires torch.compile's backend npu, got device {device}"
            f"{'' if device == 'cpu' else ' without it'}. Install npu-compiler, or pass eager.",
            code="sweep-option",
        )
    return modes


def _device(name: str) -> "torch.device":
    import torch

    try:
        device = torch.device(name)
        if device.type in ("npu", "cpu"):
            torch.empty(1, device=device)
            return device
        reason = "another kind of device"
    except RuntimeError as failure:
        reason = str(failure).splitlines()[0]
    raise TraceError(
        f"`--device` must be an available npu, npu:N or cpu, got {name!r} ({reason}). Run "
        f"npu-runtime info to list devices.",
        code="sweep-option",
    )


def _peaks(arguments: argparse.Namespace, device: "torch.device") -> "Peaks | None":
    if arguments.no_peaks or device.type == "cpu":
        return None
    from npu_profiler.roofline.peaks import find_peaks
    from npu_profiler.sweeps import PRECISIONS

    wanted = {PRECISIONS[name.strip()] for name in arguments.dtypes.split(",")}
    return find_peaks(wanted, device_index=device.index or 0, say=say)
