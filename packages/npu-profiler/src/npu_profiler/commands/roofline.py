"""`npu-profiler roofline`: compares each layer with the device's bandwidth and compute."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_profiler.commands.options import add_file, add_top, check_top, say
from npu_profiler.errors import TraceError
from npu_profiler.reading import load_trace
from npu_profiler.reports import roofline as table
from npu_profiler.reports.pictures import check_target, write_picture
from npu_profiler.reports.roofline import draw_roofline
from npu_profiler.reports.tables import format_ms, format_table
from npu_profiler.roofline.layers import LayerRuns, Roof, collect_layers, find_roofs
from npu_profiler.roofline.peaks import ABOVE_PEAK, Peaks, find_peaks

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    check_top(arguments.top)
    target = check_target(arguments.output) if arguments.output else None
    given = _read_peaks(arguments.peak)
    bandwidth = _read_rate("--bandwidth", arguments.bandwidth)
    layers = _choose(collect_layers(load_trace(arguments.file)), arguments)
    peaks = _peaks(layers, given, bandwidth, arguments)
    roofs = find_roofs(layers, peaks)
    give_answer(
        arguments.json, _document(roofs, peaks), lambda: _print(roofs, peaks, arguments.top)
    )
    if target is not None:
        title = f"{Path(arguments.file).name} on {peaks.device}"
        write_picture(target, draw_roofline(roofs, peaks, title=title))
        say(f"wrote {target}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler roofline",
        description="Shows for each layer of a trace (recorded with --layers) the share of the "
        "device's arithmetic and memory peaks that it reaches. Peaks are measured on first "
        "use, in about ten seconds, and cached.",
    )
    add_file(parser)
    parser.add_argument(
        "-o", "--output", metavar="PICTURE", help="draw a chart: .svg, .png or .html"
    )
    parser.add_argument(
        "--program", metavar="TEXT", help="only programs with this text in their names"
    )
    parser.add_argument(
        "--step", choices=("prefill", "decode"), help="only layers within these steps"
    )
    parser.add_argument(
        "--bandwidth", metavar="GB/s", help="peak of the memory, instead of the measured one"
    )
    parser.add_argument(
        "--peak",
        metavar="PRECISION=GFLOP/s",
        action="append",
        default=[],
        help="peak of a precision, instead of the measured one: --peak bf16=900 --peak i8=1800",
    )
    parser.add_argument("--measure", action="store_true", help="measure the peaks again")
    parser.add_argument(
        "--device", type=int, default=0, metavar="N", help="index of the npu device (default: 0)"
    )
    add_top(parser)
    add_json(parser)
    return parser


def _choose(layers: list[LayerRuns], arguments: argparse.Namespace) -> list[LayerRuns]:
    chosen = [
        layer
        for layer in layers
        if (arguments.step is None or layer.step == arguments.step)
        and (arguments.program is None or arguments.program in layer.program)
    ]
    if chosen:
        return chosen
    programs = sorted({" ".join((layer.program, layer.step)).strip() for layer in layers})
    raise TraceError(
        f"roofline: --program and --step must match a layer, got none. Programs: "
        f"{', '.join(programs)}. Choose one of them.",
        code="roofline-option",
    )


def _peaks(
    layers: Sequence[LayerRuns],
    given: Mapping[str, float],
    bandwidth: float | None,
    arguments: argparse.Namespace,
) -> Peaks:
    wanted = {layer.precision for layer in layers if any(layer.flops)} - set(given)
    if bandwidth is not None and not wanted:
        return Peaks("the peaks that were given", bandwidth, given)
    measured = find_peaks(
        wanted,
        device_index=arguments.device,
        is_fresh=arguments.measure,
        say=say,
    )
    rates = {name: measured.flops_per_s[name] for name in wanted & set(measured.flops_per_s)}
    return Peaks(measured.device, bandwidth or measured.bytes_per_s, {**rates, **given})


def _read_peaks(options: Sequence[str]) -> dict[str, float]:
    found = {}
    for option in options:
        name, sign, rate = option.partition("=")
        if not (name and sign):
            raise TraceError(
                f"`--peak` must be PRECISION=GFLOP/s, got {option!r}. Pass, for example, bf16=900.",
                code="roofline-option",
            )
        value = _read_rate("--peak", rate)
        if value is not None:
            found[name] = value
    return found


def _read_rate(option: str, text: str | None) -> float | None:
    """Reads a rate in billions per second; returns it per second."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise TraceError(
            f"`{option}` must be a number above 0, in billions per second, got {text!r}. Pass, for "
            f"example, 25.",
            code="roofline-option",
        )
    return value * 1e9


def _document(roofs: Sequence[Roof], peaks: Peaks) -> dict[str, object]:
    return {
        "device": peaks.device,
        "peak_bytes_per_s": peaks.bytes_per_s,
        "peak_flops_per_s": dict(peaks.flops_per_s),
        "layers": [
            {
                "program": roof.layer.program,
                "step": roof.layer.step,
                "layer": roof.layer.name,
                "module": roof.layer.module,
                "kind": roof.layer.kind,
                "precision": roof.layer.precision,
                "time_ns": roof.time_ns,
                "flops": roof.flops,
                "size_bytes": roof.size_bytes,
                "compute_ns": roof.compute_ns,
                "memory_ns": roof.memory_ns,
                "share": roof.share,
            }
            for roof in roofs
        ],
    }


def _print(roofs: Sequence[Roof], peaks: Peaks, top: int) -> None:
    blocks = [
        peaks.lines(),
        format_table(table.by_program(roofs)),
        format_table(table.by_kind(roofs), limit=top),
        format_table(table.by_layer(roofs), limit=top),
    ]
    unknown = table.unknown_kinds(roofs)
    if unknown:
        names = ", ".join(
            f"{kind or 'no type'} ({count:,} layers, {format_ms(time_ns)})"
            for kind, (count, time_ns) in unknown.items()
        )
        blocks.append(
            [
                f"no roof is known for: {names}",
                "  They count in the times, but not in the reached share of the roof.",
            ]
        )
    if any((roof.share or 0) > 1 for roof in roofs):
        blocks.append([f"{ABOVE_PEAK} (--measure does so again)"])
    print("\n\n".join("\n".join(block) for block in blocks))
