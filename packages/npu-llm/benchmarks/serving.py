"""A server for several clients at once: tokens/s and time to first token beside other servers.

    python packages/npu-llm/benchmarks/serving.py --work DIR --peers PYTHON [--llama PYTHON]

DIR and PYTHON are those of llm.py beside this file, which also makes the forms of the weights.
PYTHON has openvino-genai, whose continuous batching stands behind a server like ours; --llama names
an interpreter with llama-cpp-python[server]. Each server runs in a process of its own, and answers
the same questions: prompts and answers of random lengths, drawn anew for each number of clients
with the same seed for each server. The clients run on the same cores, as they would on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _llm_files import form_path
from llm import shared_properties

from npu_llm.errors import ServerError
from npu_llm.serving.client import Connection, LoadReport, Work, measure

HERE = Path(__file__).parent
_GGUF = {"int8": "Q8_0", "int4": "Q4_0"}


def command(engine: str, precision: str, port: int, options: Any) -> list[str]:
    """Returns what starts a server."""
    checkpoint = str(form_path(options.work, options.model, "checkpoint"))
    if engine == "npu-llm":
        return [
            sys.executable, "-W", "ignore", "-m", "npu_llm.cli", "serve", "--model", checkpoint,
            "--dtype", precision, "--port", str(port), "--cache-dir",
            str(options.work / "npu-llm-cache"), *options.serve_option,
        ]  # fmt: skip
    if engine == "openvino-genai":
        folder = form_path(options.work, options.model, "openvino", precision)
        properties = {"INFERENCE_NUM_THREADS": options.threads, **shared_properties(precision)}
        script = str(HERE / "_genai_server.py")
        return [options.peers, script, str(folder), checkpoint, str(port), json.dumps(properties)]
    file = form_path(options.work, options.model, "gguf", _GGUF[precision])
    return [
        options.llama, "-m", "llama_cpp.server", "--model", str(file), "--port", str(port),
        "--n_ctx", "8192", "--n_threads", str(options.threads),
    ]  # fmt: skip


def run(engine: str, precision: str, options: Any) -> dict[int, LoadReport]:
    """Starts a server, and returns how it answered, by the number of clients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: options.threads]))
    server = subprocess.Popen(
        ["taskset", "-c", cores, *command(engine, precision, port, options)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        connection = Connection(f"http://127.0.0.1:{port}")
        _wait(connection, server)
        measure(connection, Work(clients=1, requests=2, new_tokens=(8, 8), seed=99))  # warms up
        found = {}
        for clients in options.clients:
            work = Work(
                clients=clients,
                requests=max(clients * options.rounds, options.rounds),
                prompt_words=tuple(options.prompt),
                new_tokens=tuple(options.new_tokens),
                seed=clients,
            )
            found[clients] = measure(connection, work)
        return found
    finally:
        server.terminate()
        server.wait()


def _wait(connection: Connection, server: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        try:
            connection.models()
        except ServerError:
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}") from None
            time.sleep(0.25)
        else:
            return
    raise SystemExit("the server does not answer")


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def numbers(text: str) -> list[int]:
    return [int(part) for part in listed(text)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps weights")
    parser.add_argument("--peers", help="the interpreter with openvino-genai")
    parser.add_argument("--llama", help="the interpreter with llama-cpp-python[server]")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precisions", type=listed, default=["int8", "int4"])
    parser.add_argument("--clients", type=numbers, default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=4, help="questions of each client")
    parser.add_argument("--prompt", type=numbers, default=[32, 800], help="words of a prompt")
    parser.add_argument("--new-tokens", type=numbers, default=[16, 200])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve-option", action="append", default=[], help="for npu-llm serve")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    engines = ["npu-llm"]
    engines += ["openvino-genai"] if options.peers else []
    engines += ["llama-cpp-python"] if options.llama else []
    print(
        f"{'precision':9}  {'clients':>7}  {'server':18}  tokens/s  TTFT 50 %  95 %  ms/token 50 %"
    )
    kept = []
    for precision in options.precisions:
        found = {engine: run(engine, precision, options) for engine in engines}
        for clients in options.clients:
            for engine in engines:
                report = found[engine][clients]
                first, between = report.time_to_first_token, report.time_per_token
                print(
                    f"{precision:9}  {clients:7}  {engine:18}  {report.tokens_per_s:8.1f}  "
                    f"{first.p50_s if first else 0:9.3f}  {first.p95_s if first else 0:4.2f}  "
                    f"{1e3 * between.p50_s if between else 0:8.1f}",
                    flush=True,
                )
                kept.append({"precision": precision, "server": engine, **asdict(report)})
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
