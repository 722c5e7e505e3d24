"""The figures above all tables as lines for a terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from npu_profiler.queries.intervals import Gap
from npu_profiler.queries.overview import Overview
from npu_profiler.queries.steps import Step
from npu_profiler.reading import Trace
from npu_profiler.recording.summary import usual_lines
from npu_profiler.reports.tables.text import format_bytes, format_ms, format_share

__all__ = ["figure_lines", "heading_lines"]

_MANY = 5


def heading_lines(trace: Trace) -> list[str]:
    """What the trace is, and what is missing in it."""
    made_with = ", ".join(
        f"{name} {trace.facts[name]}" for name in ("npu-profiler", "torch") if name in trace.facts
    )
    lines = [
        f"{trace.path}: {trace.event_count:,} events" + (f" ({made_with})" if made_with else "")
    ]
    if not trace.is_complete:
        lines.append(
            "the file has no end: its program was killed, or still runs; what follows is of what "
            "was written"
        )
    problems = trace.facts.get("problems")
    if isinstance(problems, list):
        lines += [f"missing: {problem}" for problem in problems]
    return lines


def figure_lines(trace: Trace, found: Overview) -> list[str]:
    """The figures, of a recording or of an estimate."""
    return _estimate_lines(trace.estimate) if trace.estimate else _overview_lines(found)


def _estimate_lines(estimate: Mapping[str, Any]) -> list[str]:
    lines = [
        _line("estimate", f"NPU {estimate['target']}: {estimate['note']}"),
        _line("compiler", estimate["compiler"]),
    ]
    for program in estimate["programs"]:
        busy = ", ".join(f"{name} {share:.0f} %" for name, share in program["shares"].items())
        lines.append(_line(program["name"], f"{program['latency_ms']:,.3f} ms; busy: {busy}"))
        if program["unmodeled"]:
            left_out = ", ".join(program["unmodeled"])
            lines.append(f"  without {left_out}, which the compiler's cost model lacks")
    return lines


def _overview_lines(found: Overview) -> list[str]:
    lines = [_line("wall time", format_ms(found.wall_ns))]
    lines += _device_lines(found)
    lines += _thread_lines(found)
    if found.compile_ns:
        lines.append(_line("compiling", format_ms(found.compile_ns)))
    lines += _step_lines(found.steps)
    lines.append(_line("fallbacks", _fallback_text(found)))
    fallbacks = sum(number for number, _ in found.fallbacks.values())
    lines += usual_lines(sum(one.runs for one in found.devices), fallbacks)
    for copy in found.copies:
        speed = f", {copy.size_bytes / copy.total_ns:.2f} GB/s" if copy.total_ns else ""
        lines.append(
            _line(
                f"copied {copy.direction}",
                f"{format_bytes(copy.size_bytes)} in {copy.count:,} copies, "
                f"{format_ms(copy.total_ns)}{speed}",
            )
        )
    if found.flops is not None:
        lines.append(_line("recorded layers", f"{found.flops / 1e9:,.4g} GFLOP computed"))
    if found.moved_bytes is not None:
        lines.append(
            _line("recorded layers", f"{format_bytes(found.moved_bytes)} read and written")
        )
    return lines


def _device_lines(found: Overview) -> list[str]:
    if not found.devices:
        return [_line("device", "ran no programs")]
    lines = []
    for one in found.devices:
        share = format_share(one.busy_ns / max(found.wall_ns, 1))
        active = format_share(one.busy_ns / max(one.active_ns, 1))
        lines.append(
            _line(
                f"npu:{one.device} busy",
                f"{format_ms(one.busy_ns)} = {share} of the wall time, {active} from its first "
                f"program to its last; {one.runs:,} runs",
            )
        )
        if one.gaps:
            idle = one.active_ns - one.busy_ns
            lines.append(
                _line(f"npu:{one.device} gaps", f"{format_ms(idle)} in {one.gaps:,} gaps; longest:")
            )
            lines += [
                f"  {format_ms(gap.duration_ns):>12} at {format_ms(gap.start_ns)}, before "
                f"{gap.before or 'a program'}: {_gap_text(gap)}"
                for gap in found.gaps
                if gap.device == one.device
            ]
    return lines


def _gap_text(gap: Gap) -> str:
    if not gap.host:
        return "who launched it is not known"
    shown = [f"{name} {format_share(ns / gap.duration_ns)}" for name, ns in gap.host[:3]]
    return ", ".join(shown)


def _thread_lines(found: Overview) -> list[str]:
    if not found.threads:
        return [_line("host", "ran no ops")]
    whole = sum(one.op_ns for one in found.threads)
    shown = ", ".join(
        f"{one.name} {format_ms(one.op_ns)} ({format_share(one.op_ns / max(found.wall_ns, 1))})"
        for one in found.threads[:_MANY]
    )
    more = f", {len(found.threads) - _MANY} more" if len(found.threads) > _MANY else ""
    return [_line("host in ops", f"{format_ms(whole)}: {shown}{more}")]


def _step_lines(steps: Sequence[Step]) -> list[str]:
    lines = []
    for kind, count in Counter(step.kind for step in steps).items():
        times = sorted(step.duration_ns for step in steps if step.kind == kind)
        lines.append(
            _line(
                f"{kind}s",
                f"{count:,}, median {format_ms(round(median(times)))}, "
                f"{format_ms(times[0])} to {format_ms(times[-1])}",
            )
        )
    return lines


def _fallback_text(found: Overview) -> str:
    count = sum(number for number, _ in found.fallbacks.values())
    if not count:
        return "0"
    spent = sum(ns for _, ns in found.fallbacks.values())
    named = [f"{name} x{number}" for name, (number, _) in found.fallbacks.items()]
    more = f", {len(named) - _MANY} more" if len(named) > _MANY else ""
    return f"{count:,} ops by CPU kernels, {format_ms(spent)} ({', '.join(named[:_MANY])}{more})"


def _line(title: str, text: str) -> str:
    return f"{title + ':':<20} {text}"
