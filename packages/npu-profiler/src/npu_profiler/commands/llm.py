"""`npu-profiler llm`: measures a language model over prompt lengths and dtypes."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from npu_command.charts import Chart, Panel, draw_bars
from npu_command.command_parser import CommandParser
from npu_command.output import give_answer
from npu_profiler.commands.options import say
from npu_profiler.commands.platform_command import run_command
from npu_profiler.commands.sweep import add_outputs
from npu_profiler.errors import TraceError
from npu_profiler.reports.pictures import check_target, write_picture
from npu_profiler.reports.tables import Column, Table, format_table

__all__ = ["draw", "main", "to_table"]


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    prompts = _read_lengths(arguments.sizes)
    picture = check_target(arguments.plot) if arguments.plot else None
    given = ["--prompt", prompts, "--new", str(arguments.new), "--repeats", str(arguments.repeats)]
    if arguments.model is not None:
        given += ["--model", arguments.model]
    dtypes = arguments.dtypes.split(",") if arguments.dtypes else [None]
    benches = []
    for dtype in dtypes:
        chosen = [] if dtype is None else ["--dtype", dtype.strip()]
        say(f"npu-llm bench {' '.join([*given, *chosen])}")
        bench = ["bench", *given, *chosen]
        benches.append(run_command("npu-llm", bench, caller="llm"))
    lines = format_table(to_table(benches))
    document = {"command": "llm", "benches": benches}
    give_answer(arguments.json, document, lambda: print("\n".join(lines)))
    if picture is not None:
        title = f"{benches[0]['model']} on {benches[0]['device']}"
        write_picture(picture, draw(benches, title=title))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler llm",
        description="Runs npu-llm bench once for each dtype.",
    )
    parser.add_argument(
        "--sizes",
        default="32,1024",
        metavar="N,N",
        help="prompt lengths in tokens (default: 32,1024)",
    )
    parser.add_argument(
        "--dtypes",
        metavar="D,D",
        help="float32, bfloat16, float16, int8, int4 (default: npu-llm's default)",
    )
    parser.add_argument(
        "--new", type=int, default=128, metavar="N", help="tokens to generate (default: 128)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="runs of each size (default: 3)"
    )
    parser.add_argument(
        "--model", metavar="PATH", help="as in npu-llm (default: the installed weights)"
    )
    add_outputs(parser)
    return parser


def _read_lengths(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() and int(part) > 0 for part in parts):
        return ",".join(parts)
    raise TraceError(
        f"`--sizes` must be whole numbers of tokens above 0, got {text!r}. Pass, for example, "
        f"32,1024.",
        code="sweep-option",
    )


_PANELS = {
    "first_token_s": "Time to first token (ms)",
    "prefill_tokens_per_s": "Prefill (tokens/s)",
    "decode_tokens_per_s": "Decode (tokens/s)",
}


def to_table(benches: Sequence[Mapping[str, Any]]) -> Table:
    """Returns one row for each size and dtype."""
    columns = [
        Column("precision", "dtype"),
        Column("prompt_tokens", "prompt", "count"),
        Column("new_tokens", "answer", "count"),
        Column("batch_size", "batch", "count"),
        Column("first_token_ns", "TTFT ms", "ns"),
        Column("prefill_tokens_per_s", "prefill tokens/s", "number"),
        Column("decode_tokens_per_s", "decode tokens/s", "number"),
        Column("peak_memory_bytes", "peak memory", "bytes"),
    ]
    rows = [
        {**bench, **record, "first_token_ns": record["first_token_s"] * 1e9}
        for bench in benches
        for record in bench["records"]
    ]
    cells = [[row[column.key] for column in columns] for row in rows]
    names = ", ".join(dict.fromkeys(f"{one['model']} on {one['device']}" for one in benches))
    return Table(names, columns, cells)


def draw(benches: Sequence[Mapping[str, Any]], *, title: str) -> Chart:
    """Draws bars: a panel per metric, a group per size, a bar per dtype."""
    panels = []
    for key, name in _PANELS.items():
        groups: dict[str, dict[str, float]] = {}
        for bench in benches:
            for record in bench["records"]:
                if record[key] is not None:
                    size = f"{record['prompt_tokens']} + {record['new_tokens']} tokens"
                    scale = 1e3 if key.endswith("_s") and "per" not in key else 1
                    groups.setdefault(size, {})[bench["precision"]] = record[key] * scale
        panels.append(Panel(name, groups))
    return draw_bars(panels, title=title)
