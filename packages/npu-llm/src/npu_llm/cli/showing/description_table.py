"""Prints the description of a model as tables."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["print_description"]

# Tracing the model decides.
_EITHER = "kernels, or dynamic if a call of the model has no kernel; --trace finds out"


def print_description(said: dict[str, Any]) -> None:
    """Prints the tables.

    Args:
        said: the result of npu_llm.cli.showing.model_description.describe.
    """
    console = Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
    facts, device, memory = said["facts"], said["device"], said["memory"]
    context = facts["context_length"]
    by_default = next(row for row in memory["precisions"] if row["is_default"])
    about = Table(show_header=False, pad_edge=False, box=None)
    picked = facts["picked_tokens"]
    sparse = {"attention": f"to {picked:,} tokens that an indexer chooses"} if picked else {}
    how = by_default["quantization"]
    weights = {} if how is None else {"weights": how}
    verified = {"program": said["verification"]} if said["verification"] else {}
    for name, value in {
        "model": f"{said['model']} ({said['kind']})",
        "architecture": facts["architecture"],
        "parameters": f"{facts['parameters'] / 1e6:,.1f} million",
        "layers": f"{facts['layers']}, {facts['hidden_size']:,} wide",
        "heads": f"{facts['heads']} of {facts['head_dim']}, {facts['kv_heads']} of keys and values",
        **sparse,
        **weights,
        "vocabulary": f"{facts['vocabulary']:,} tokens",
        "context": "no limit" if context is None else f"{context:,} tokens",
        "runs on": f"{device['device']}, {device['full_name']} ({device['reason']})",
        "pipeline": _pipeline_text(device),
        "sparse attention": device["sparse_attention"],
        "precision": _precision(by_default["precision"]),
        "computes in": by_default["computed_in"],
        **verified,
        **_speed(said["estimate"]),
        "threads": said["processors"],
        "memory": f"{memory['available_bytes'] / 1e9:.1f} GB are available",
    }.items():
        about.add_row(name, str(value))
    console.print(about)
    console.print()
    console.print(_memory_table(memory))


def _precision(name: str) -> str:
    return "file: each weight as in the file" if name == "file" else name


def _speed(estimate: dict[str, Any] | None) -> dict[str, str]:
    if estimate is None:
        return {}
    if estimate["missing"]:
        return {"estimate": f"none. {estimate['missing']}"}
    speed = (
        f"{estimate['tokens_per_s']:,.3g} tokens/s, first token of a prompt of "
        f"{estimate['prompt_tokens']} after {estimate['ttft_s'] * 1e3:,.3g} ms on "
        f"{estimate['target']}: {estimate['note']}"
    )
    return {"estimate": speed}


def _pipeline_text(device: dict[str, Any]) -> str:
    reason = device["why_not_kernels"]
    if not device["pipeline_is_known"]:
        return _EITHER
    return str(device["pipeline"]) if reason is None else f"{device['pipeline']}: {reason}"


def _memory_table(memory: dict[str, Any]) -> Table:
    # Without lines between columns the table fits a terminal of 60 columns.
    table = Table(
        title="memory by precision and context, in GB",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("precision", no_wrap=True)
    table.add_column("weights", justify="right")
    for context in memory["precisions"][0]["total_bytes"]:
        table.add_column(f"{int(context):,} tokens", justify="right")
    table.add_column("first start", justify="right")
    table.add_column("fits", no_wrap=True)
    for row in memory["precisions"]:
        totals = list(row["total_bytes"].values())
        table.add_row(
            row["precision"],
            f"{row['weights_bytes'] / 1e9:.2f}",
            *(f"{total / 1e9:.2f}" for total in totals),
            f"{row['first_start_bytes'] / 1e9:.2f}",
            _fits(row, totals, memory["available_bytes"]),
        )
    return table


def _fits(row: dict[str, Any], totals: list[int], available: int) -> str:
    if all(total <= available for total in totals):
        return "yes" if row["first_start_bytes"] <= available else "once exported elsewhere"
    tokens = row["max_context_that_fits"]
    return f"up to {tokens:,} tokens" if tokens else "no"
