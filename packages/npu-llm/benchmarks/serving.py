"""Compares servers of the same GGUF file under the same load of concurrent clients.

    python packages/npu-llm/benchmarks/serving.py --gguf FILE [--llama PYTHON] [--genai PYTHON]

PYTHON is an interpreter with xllamacpp, for llama.cpp's server, or with openvino-genai: its
continuous batching gets a server similar to ours. All servers run from the beginning, and get
requests in turn: a window each, then the next window in another order. Answers are greedy and have
exactly the requested length, so that all servers compute as many tokens. No prompt repeats.
Refusals and empty answers are counted. The clients run on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from npu_llm.errors import ServerError
from npu_llm.serving.client import Connection, Load, Percentiles, Work, gather

HERE = Path(__file__).parent
GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass
class Server:
    """A server in a separate process."""

    name: str
    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]

    def wait(self) -> None:
        """Waits until it responds."""
        for _ in range(1200):
            try:
                gather(self.connection, work(1, 1, (8, 8), (8, 8), seed=99))
            except ServerError:
                if self.process.poll() is not None:
                    self.log.seek(0)
                    raise SystemExit(self.log.read().decode()[-2000:]) from None
                time.sleep(0.25)
            else:
                return
        raise SystemExit(f"{self.name} does not answer")


def work(
    clients: int, requests: int, prompt: tuple[int, int], new: tuple[int, int], *, seed: int
) -> Work:
    return Work(
        clients=clients, requests=requests, prompt_words=prompt, new_tokens=new, seed=seed,
        fields=GREEDY,
    )  # fmt: skip


def command(name: str, file: Path, port: int, options: Any) -> list[str]:
    """Returns the command of a server."""
    if name == "npu-llm":
        return [
            sys.executable, "-W", "ignore", "-m", "npu_llm.cli", "serve", "--model", str(file),
            "--port", str(port), *options.serve_option,
        ]  # fmt: skip
    places = max(options.clients)
    if name == "llama-server":
        script = str(HERE / "_llama_server.py")
        return [options.llama, script, str(file), str(port), str(options.threads), str(places)]
    return [
        options.genai,
        str(HERE / "_genai_server.py"),
        str(file),
        str(port),
        str(options.threads),
    ]


def start(name: str, file: Path, options: Any) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: options.threads]))
    log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the server
    process = subprocess.Popen(
        ["taskset", "-c", cores, *command(name, file, port, options)],
        stdout=log,
        stderr=log,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    return Server(name, process, Connection(f"http://127.0.0.1:{port}"), log)


def compare(file: Path, options: Any) -> dict[tuple[int, str], Load]:
    """Returns each server's results by the number of clients and its name."""
    names = ["npu-llm"]
    names += ["llama-server"] if options.llama else []
    names += ["openvino-genai"] if options.genai else []
    servers = [start(name, file, options) for name in names]
    found: dict[tuple[int, str], Load] = {}
    try:
        for server in servers:
            server.wait()
        for clients in options.clients:
            for window in range(options.windows):
                asked = work(
                    clients, clients * options.rounds, options.prompt, options.new_tokens,
                    seed=1000 * clients + window,
                )  # fmt: skip
                turn = window % len(servers)
                for server in servers[turn:] + servers[:turn]:
                    load = gather(server.connection, asked)
                    key = (clients, server.name)
                    found[key] = found[key] + load if key in found else load
    finally:
        for server in servers:
            server.process.terminate()
        for server in servers:
            server.process.wait()
    return found


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def bounds(text: str) -> tuple[int, int]:
    """Returns the minimum and maximum from one or two numbers."""
    found = numbers(text)
    return found[0], found[-1]


def _shown(times: Percentiles | None) -> str:
    return "-" if times is None else f"{times.p50_s * 1e3:.0f} / {times.p95_s * 1e3:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, action="append", required=True)
    parser.add_argument("--llama", help="the interpreter with xllamacpp")
    parser.add_argument("--genai", help="the interpreter with openvino-genai")
    parser.add_argument(
        "--clients",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 4, 8, 16],
    )
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2, help="questions of a client in a window")
    parser.add_argument("--prompt", type=bounds, default=(32, 256), help="words of a prompt")
    parser.add_argument("--new-tokens", type=bounds, default=(32, 128))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve-option", action="append", default=[], help="for npu-llm serve")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    names = ("file", "clients", "server", "requests/s", "tokens/s", "TTFT ms 50/95 %",
             "ms/token 50/95 %", "ms/piece 50/95 %", "errors", "empty")  # fmt: skip
    row = "{:24.24}  {:>7}  {:14}  {:>10}  {:>8}  {:>15}  {:>16}  {:>16}  {:>6}  {:>5}"
    print(row.format(*names))
    kept = []
    for file in options.gguf:
        for (clients, name), load in compare(file, options).items():
            report = load.report()
            print(
                row.format(
                    file.name, clients, name, f"{report.requests_per_s:.2f}",
                    f"{report.tokens_per_s:.1f}", _shown(report.time_to_first_token),
                    _shown(report.time_per_token), _shown(report.time_between_pieces),
                    sum(report.refusals.values()), report.empty,
                ),
                flush=True,
            )  # fmt: skip
            kept.append({"file": file.name, "server": name, **asdict(report)})
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
