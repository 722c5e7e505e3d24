"""Effects of sparse attention in an ordinary model: time per token and loss against k.

    python packages/npu-llm/benchmarks/sparse_attention.py --model MODEL --text FILE --plot FILE.svg

A window of the text fills the model's context. All but its last tokens are prefilled once, with
dense attention. The last tokens are decoded one by one, and scored. The first row attends to
everything, without sparse attention. The time is the median of a step without sampling; with one
thread it is processor time, which other load does not affect. Memory bandwidth is the bottleneck: a
step reads the weights, then keys and values, or with k positions the bounds of all keys, and keys
and values of k.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import npu_llm
from npu_command.charts import PALETTE, Chart, make_figure, own_style

_PIECE = 512  # prompt tokens per step
_COUNTS = (128, 256, 512, 1024, 2048, 4096)


def read_prompts(model: Any, windows: list[torch.Tensor], scored: int) -> list[Any]:
    """Returns a cache's content after each window's tokens before the scored ones."""
    saved = []
    for tokens in windows:
        cache, length = model.new_cache(), len(tokens) - scored - 1
        for begin in range(0, length, _PIECE):
            end = min(begin + _PIECE, length)
            model.step(tokens[None, begin:end], cache, logits_to_keep=1)
        saved.append(cache.tensors())
    return saved


def measure(
    model: Any, windows: list[torch.Tensor], prompts: list[Any], *, scored: int
) -> tuple[float, float]:
    """Returns the perplexity of the windows' last tokens, and the median milliseconds of a step."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    total, times = 0.0, []
    for tokens, prompt in zip(windows, prompts, strict=True):
        cache = model.new_cache()
        cache.restore(prompt)
        for place in range(len(tokens) - scored - 1, len(tokens) - 1):
            before = clock()
            logits = model.step(tokens[None, place : place + 1], cache)
            times.append(clock() - before)
            total += float(
                torch.nn.functional.cross_entropy(logits[0], tokens[place + 1 : place + 2])
            )
    return math.exp(total / (scored * len(windows))), statistics.median(times) * 1e3


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures dense attention, then each number of positions."""
    rows: list[dict[str, Any]] = []
    windows: list[torch.Tensor] = []
    prompts: list[Any] = []
    for top_k in (options.context, *options.top_k):
        model = npu_llm.load(
            options.model, dtype=options.dtype, kv_cache=options.kv_cache,
            max_context=options.context, sparse_attention=top_k,
        )  # fmt: skip
        if not windows:
            text = options.text.read_text(encoding="utf-8")
            ids = model.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0]
            step = (len(ids) - options.context) // max(options.windows - 1, 1)
            starts = [index * step for index in range(options.windows)]
            windows = [ids[start : start + options.context] for start in starts]
            prompts = read_prompts(model, windows, options.scored)
        perplexity, milliseconds = measure(model, windows, prompts, scored=options.scored)
        loss = perplexity / rows[0]["perplexity"] - 1 if rows else 0.0
        rows.append({"top_k": top_k, "perplexity": perplexity, "loss": loss, "ms": milliseconds})
        print(
            f"{top_k:>6}  perplexity {perplexity:8.3f}  loss {loss:+8.2%}  "
            f"{milliseconds:7.2f} ms a token",
            flush=True,
        )
        del model
        gc.collect()
    return rows


def draw(rows: list[dict[str, Any]], *, title: str) -> str:
    """Returns an SVG of time and loss against k; dense attention is a horizontal line."""
    dense, sparse = rows[0], rows[1:]
    counts = [row["top_k"] for row in sparse]
    with own_style():
        figure = make_figure(760, 330, title)
        left, right = figure.subplots(1, 2)
        for axes, values, across, label, colour in (
            (left, [row["ms"] for row in sparse], dense["ms"], "ms a token", PALETTE[0]),
            (right, [row["loss"] * 100 for row in sparse], 0.0, "loss, %", PALETTE[1]),
        ):
            axes.plot(counts, values, marker="o", color=colour)
            axes.axhline(across, linestyle="--", color="#888888")
            axes.annotate("dense", (counts[0], across), textcoords="offset points", xytext=(0, 4))
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [f"{count:,}" for count in counts])
            axes.set_xlabel("positions attended to (k)")
            axes.set_title(label, loc="left")
        left.set_ylim(bottom=0)
        return Chart(figure, title).svg()


def main() -> None:
    """Parses the arguments, measures, and writes the requested files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-cache")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--scored", type=int, default=768, help="tokens of each window")
    parser.add_argument("--top-k", type=int, nargs="*", default=_COUNTS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    name = Path(options.model).name
    rows = run(options)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    if options.plot is not None:
        title = f"{name}, {options.dtype}, {options.context:,} tokens: time and loss against k"
        options.plot.write_text(draw(rows, title=title))


if __name__ == "__main__":
    main()
