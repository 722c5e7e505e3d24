"""Speed and memory of generation, compared with four other engines and memory bandwidth.

    python packages/npu-llm/benchmarks/llm.py --work DIR --peers PYTHON

DIR keeps each engine's format of the weights and every result, so that later runs convert nothing
and an interrupted run continues. PYTHON is the interpreter of the other engines:

    pip install torch==2.13.* openvino-genai==2026.4.1.0 optimum-intel==2.2.0
    pip uninstall torchvision  # optimum-intel brings one that torch 2.13's CPU build refuses
    pip install --no-binary llama-cpp-python llama-cpp-python gguf

llama.cpp is compiled for the processor; 0.3.36 crashes with a segmentation fault on processors with
AMX (2026-11-22, in ggml_backend_amx_mul_mat), and runs when it is compiled without AMX:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX_VNNI=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON
    -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"

Each measurement runs in a separate process, so that memory is that of one engine and models of
gigabytes do not have to fit together. Each round has its own prompts and alternates between all
engines; the best round counts. TTFT is the time to the first token of a prompt, tokens/s the rate
after it. The limit is reading a token's data (the weights and the cache) once, at the speed of a
plain read of a large array. If the processor's last-level cache holds the weights, a share can
exceed 100 %.

The row `npu-llm` is the pipeline "kernels". Engines based on OpenVINO get the properties of
npu-llm's pipelines; `openvino-genai defaults` keeps its defaults, which are bf16, a u8 cache and
quantized activations with compressed weights. GenAI is measured with both of its attention
backends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _llm_files import MODELS, form_path
from _llm_worker import Job
from _llm_yardstick import Yardstick, print_shares

from npu_command.charts import Panel, check_matplotlib, draw_bars
from npu_llm.errors import OptionError
from npu_llm.precision import PRECISIONS, compile_options

HERE = Path(__file__).parent
CHOSEN_PRECISIONS = ("float32", "bfloat16", "int8", "int4")
PROMPTS = (32, 1024)  # tokens
# The OpenVINO properties of a row. The rest of npu-llm's options is the same everywhere.
SHARED = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
# llama.cpp's closest quantizations. Rows of Q4_K have at least 256 columns.
NEAREST = {"float32": ["F32"], "bfloat16": ["BF16"], "int8": ["Q8_0"], "int4": ["Q4_0", "Q4_K_M"]}
OPENVINO = ("openvino-genai", "openvino-genai sdpa", "openvino-genai defaults", "optimum-intel")
OURS = ("npu-llm", "npu-llm dynamic", "npu-llm static")
ENGINES = (*OURS, *OPENVINO, "llama.cpp", "transformers")


@dataclass(frozen=True)
class Row:
    """A measurement: one engine with one model in one precision."""

    model: str
    precision: str
    engine: str
    kind: str  # llama.cpp's quantization, or the kind of OpenVINO's properties

    @property
    def label(self) -> str:
        """The engine and its distinguishing option."""
        return f"{self.engine} {self.kind}" if self.engine == "llama.cpp" else self.engine


def all_rows(options: argparse.Namespace) -> list[Row]:
    """Returns the requested rows, engines innermost."""
    rows = []
    for model in options.models:
        for precision in options.precisions:
            for engine in options.engines:
                rows += [Row(model, precision, engine, kind) for kind in kinds(engine, precision)]
    small = {"smollm2-135m"}  # 576 columns: Q4_K would fall back to another kind
    return [row for row in rows if not (row.kind == "Q4_K_M" and row.model in small)]


def kinds(engine: str, precision: str) -> list[str]:
    if engine == "llama.cpp":
        return NEAREST[precision]
    if engine == "transformers":  # has no integer weights of its own
        return ["eager"] if precision in ("float32", "bfloat16") else []
    if engine == "openvino-genai defaults":
        return ["defaults"] if precision != "float32" else []
    properties = shared_properties(precision)
    return [" ".join(properties[name] for name in SHARED)]


def shared_properties(precision: str) -> dict[str, str]:
    """Returns the properties with which npu-llm compiles."""
    options = compile_options(PRECISIONS[precision])
    return {name: options[name] for name in SHARED}


def make_job(row: Row, number: int, options: argparse.Namespace) -> Job:
    """Returns the task of a process in a round; the round's number seeds its prompts."""
    engine, form, kind = row.engine, "checkpoint", ""
    if row.engine in OPENVINO:
        form, kind = "openvino", row.precision
        engine = row.engine.removesuffix(" defaults")
    elif row.engine == "llama.cpp":
        form, kind = "gguf", row.kind
    vocabulary = MODELS[row.model].get("vocab_size", 40_000)
    numbers = random.Random(number)
    return Job(
        engine=engine,
        place=str(form_path(options.work, row.model, form, kind)),
        precision=row.precision,
        properties={} if row.kind == "defaults" else shared_properties(row.precision),
        prompts=[
            [
                [numbers.randrange(100, vocabulary) for _ in range(length)]
                for _ in range(1 + options.repeats)
            ]
            for length in options.prompts
        ],
        new_tokens=options.new_tokens,
        threads=options.threads,
        cache=str(options.work / "npu-llm-cache"),
    )


# ------------------------------------------------------------------------------------ processes


def run_script(python: str, script: str, arguments: Sequence[str], threads: int) -> tuple[str, int]:
    """Runs one of the scripts in this directory; returns its output and its peak RssAnon."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    process = subprocess.Popen(
        ["taskset", "-c", cores, python, "-W", "ignore", str(HERE / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, errors = process.communicate()
    watcher.join()
    if process.returncode:
        raise ChildProcessError(f"{script} ended with {process.returncode}:\n{errors[-2000:]}")
    return output, peak


def anonymous_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def prepare(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Creates missing formats of the weights."""
    wanted: dict[tuple[str, str, str], str] = {}
    for row in rows:
        wanted[row.model, "checkpoint", ""] = sys.executable
        if row.engine in OPENVINO:
            wanted[row.model, "openvino", "float32"] = options.peers
            wanted[row.model, "openvino", row.precision] = options.peers
        if row.engine == "llama.cpp":
            wanted[row.model, "gguf", "F32"] = options.peers
            wanted[row.model, "gguf", row.kind] = options.peers
    for (model, form, kind), python in wanted.items():
        if not form_path(options.work, model, form, kind).exists():
            print(f"making {model} {form} {kind}", flush=True)
            script = [str(options.work), model, form, *([kind] if kind else [])]
            run_script(python, "_llm_files.py", script, options.threads)


def measure(row: Row, number: int, options: argparse.Namespace) -> dict[str, Any]:
    job = make_job(row, number, options)
    is_here = row.engine in OURS or row.engine == "transformers"
    python = sys.executable if is_here else options.peers
    output, peak = run_script(python, "_llm_worker.py", [json.dumps(asdict(job))], options.threads)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    result["memory"]["RssAnon"] = max(peak, result["memory"]["RssAnon"])
    return result


# --------------------------------------------------------------------------------------- limits


def read_bandwidth(size_bytes: int = 1 << 30) -> float:
    """Returns bytes per second of reading a large array with all threads, the best of three."""
    array = torch.ones(size_bytes // 4)
    vector = torch.ones(4096)
    ways = (array.sum, array.view(torch.int64).sum, lambda: array.view(-1, 4096) @ vector)
    best = float("inf")
    for _ in range(5):
        for way in ways:
            started = time.perf_counter()
            way()
            best = min(best, time.perf_counter() - started)
    return size_bytes / best


def token_bytes(row: Row, prompt: int, options: argparse.Namespace) -> float:
    """Returns the minimum bytes read per token: weights once, and the cache of half the answer.

    For an embedding that is not tied to the head only one row is read, which is neglected. Scales
    and zero points of int4 are counted; those of int8 are one per row.
    """
    place = form_path(options.work, row.model, "checkpoint")
    config = json.loads((place / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    pairs = config["num_key_value_heads"] * (hidden // config["num_attention_heads"])
    block = 2 * hidden * (hidden + pairs) + 3 * hidden * config["intermediate_size"]
    head = hidden * config["vocab_size"]
    each = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 0.5 + 2.5 / 64}[row.precision]
    is_int8_head = row.precision == "int4" and config["tie_word_embeddings"]
    cached = 4 if row.precision == "float32" else 2
    length = prompt + options.new_tokens / 2
    return (
        layers * block * each
        + head * (1 if is_int8_head else each)
        + layers * 2 * pairs * length * cached
    )


# -------------------------------------------------------------------------------------- results


class Records:
    """The measurements so far, one line of JSON each; an interrupted run continues from them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def of(self, row: Row, new_tokens: int) -> list[dict[str, Any]]:
        """Returns the results of a row."""
        key = asdict(row) | {"new_tokens": new_tokens}
        return [record for record in self.found if all(record[name] == key[name] for name in key)]

    def add(self, row: Row, new_tokens: int, result: dict[str, Any]) -> None:
        """Adds a result and writes it to disk."""
        record = asdict(row) | {"new_tokens": new_tokens} | result
        self.found.append(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def summary(
    rows: Sequence[Row], records: Records, bandwidth: float, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Returns the best round for each row and prompt."""
    for row in rows:
        results = records.of(row, options.new_tokens)
        for prompt in options.prompts:
            runs = [run for result in results for run in result["runs"] if run["prompt"] == prompt]
            if not runs:
                continue
            token_s = min(run["token_s"] for run in runs)
            limit_s = token_bytes(row, prompt, options) / bandwidth
            yield asdict(row) | {
                "label": row.label,
                "prompt": prompt,
                "rounds": len(results),
                "first_s": min(run["first_s"] for run in runs),
                "tokens_per_s": 1 / token_s,
                "share_of_limit": limit_s / token_s,
                "load_s": min(result["load_s"] for result in results),
                "peak_bytes": min(result["memory"]["VmHWM"] for result in results),
                "anonymous_bytes": min(result["memory"]["RssAnon"] for result in results),
                "tokens": runs[0]["tokens"],
            }


def print_table(lines: Sequence[dict[str, Any]]) -> None:
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["prompt"], line["precision"]), []).append(line)
    for (model, prompt, precision), members in groups.items():
        print(f"\n{model}, {precision}, prompt of {prompt:,} tokens")
        print(
            f"  {'engine':26}{'TTFT ms':>9}{'tokens/s':>10}{'of limit':>9}{'peak MB':>9}"
            f"{'anon MB':>9}{'load s':>8}  same tokens, options"
        )
        ours = next((line["tokens"] for line in members if line["engine"] == "npu-llm"), None)
        for line in members:
            same = equal_tokens(line["tokens"], ours) if ours else ""
            print(
                f"  {line['label']:26}{line['first_s'] * 1e3:9.1f}{line['tokens_per_s']:10.2f}"
                f"{line['share_of_limit']:9.0%}{line['peak_bytes'] / 1e6:9.0f}"
                f"{line['anonymous_bytes'] / 1e6:9.0f}{line['load_s']:8.1f}  {same}, {line['kind']}"
            )
        print_ratios(members)


def print_ratios(members: Sequence[dict[str, Any]]) -> None:
    """Prints the ratio of npu-llm to the best other engine for each figure."""
    ours = [line for line in members if line["engine"] == "npu-llm"]
    others = [line for line in members if line["engine"] not in OURS]
    if not ours or not others:
        return
    rate = ours[0]["tokens_per_s"] / max(line["tokens_per_s"] for line in others)
    first = ours[0]["first_s"] / min(line["first_s"] for line in others)
    peak = ours[0]["peak_bytes"] / min(line["peak_bytes"] for line in others)
    anonymous = ours[0]["anonymous_bytes"] / min(line["anonymous_bytes"] for line in others)
    print(
        f"  npu-llm to the best of the others: tokens/s {rate:.2f}x, TTFT {first:.2f}x, "
        f"peak {peak:.2f}x, anonymous {anonymous:.2f}x"
    )


def equal_tokens(tokens: list[int], ours: list[int]) -> int:
    """Returns the number of leading tokens that equal npu-llm's."""
    pairs = zip(tokens, ours, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(ours))


def plot(lines: Sequence[dict[str, Any]]) -> str:
    """Draws tokens/s of each engine, a panel for each model and prompt."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for line in lines:
        title = f"{line['model']}, prompt of {line['prompt']:,} tokens: decode, tokens/s"
        group = panels.setdefault(title, {}).setdefault(line["precision"], {})
        group[line["engine"]] = max(line["tokens_per_s"], group.get(line["engine"], 0.0))
    drawn = [Panel(title, groups) for title, groups in panels.items()]
    return draw_bars(drawn, title="Decode speed by precision and engine").svg()


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps weights and results")
    parser.add_argument("--peers", default=sys.executable, help="the other engines' interpreter")
    parser.add_argument("--models", type=listed, default=list(MODELS))
    parser.add_argument("--precisions", type=listed, default=list(CHOSEN_PRECISIONS))
    parser.add_argument("--engines", type=listed, default=list(ENGINES))
    parser.add_argument("--prompts", type=lambda text: [*map(int, listed(text))], default=PROMPTS)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="answers per process and prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="put former results aside")
    parser.add_argument("--report-only", action="store_true", help="measure nothing new")
    parser.add_argument("--yardstick", type=Path, help="a .cpp file, see _llm_yardstick.py")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="an .svg file")
    options = parser.parse_args()
    if options.plot:
        check_matplotlib("npu-llm", OptionError)
    options.work.mkdir(parents=True, exist_ok=True)
    place = options.work / "results.jsonl"
    if options.again and place.exists():
        place.rename(options.work / f"results-until-{int(time.time())}.jsonl")
    rows, records = all_rows(options), Records(place)
    if not options.report_only:
        prepare(rows, options)
        for number in range(options.rounds):
            for row in rows:
                if len(records.of(row, options.new_tokens)) > number:
                    continue
                print(f"round {number + 1}: {row.model} {row.precision} {row.label}", flush=True)
                try:
                    records.add(row, options.new_tokens, measure(row, number, options))
                except ChildProcessError as failure:
                    print(failure, file=sys.stderr, flush=True)
    torch.set_num_threads(options.threads)
    bandwidth = read_bandwidth()
    print(f"{options.threads} threads; memory is read at {bandwidth / 1e9:.1f} GB/s", end="; ")
    print(f"load {os.getloadavg()}")
    lines = list(summary(rows, records, bandwidth, options))
    print_table(lines)
    if options.yardstick and (
        yardstick := Yardstick.build(options.yardstick, options.work, options.threads)
    ):
        print_shares(yardstick, lines, options.new_tokens)
    if options.json:
        options.json.write_text(
            json.dumps({"bandwidth_bytes_per_s": bandwidth, "rows": lines}, indent=1)
        )
    if options.plot:
        options.plot.write_text(plot(lines))


if __name__ == "__main__":
    main()
