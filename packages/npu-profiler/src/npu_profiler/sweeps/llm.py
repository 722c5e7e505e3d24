"""Language models over prompt lengths and dtypes, by the figures of `npu-llm bench`."""

from collections.abc import Mapping, Sequence
from typing import Any

from npu_command.charts import Chart, Panel, draw_bars
from npu_profiler.reports.tables.model import Column, Table

__all__ = ["draw", "to_table"]

_PANELS = {
    "first_token_s": "Time to first token (ms)",
    "prefill_tokens_per_s": "Prefill (tokens/s)",
    "decode_tokens_per_s": "Decode (tokens/s)",
}


def to_table(benches: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each size and dtype."""
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
        [
            bench["precision"],
            record["prompt_tokens"],
            record["new_tokens"],
            record["batch_size"],
            record["first_token_s"] * 1e9,
            record["prefill_tokens_per_s"],
            record["decode_tokens_per_s"],
            record["peak_memory_bytes"],
        ]
        for bench in benches
        for record in bench["records"]
    ]
    names = ", ".join(dict.fromkeys(f"{one['model']} on {one['device']}" for one in benches))
    return Table(names, columns, rows)


def draw(benches: Sequence[Mapping[str, Any]], *, title: str) -> Chart:
    """Bars: a panel for each figure, a group for each size, a bar for each dtype."""
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
