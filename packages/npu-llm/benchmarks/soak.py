"""Soak test of the server: many clients for minutes, a tenth of which misbehave.

    python packages/npu-llm/benchmarks/soak.py --gguf FILE [--clients 100] [--minutes 10]

Well-behaved clients send one short prompt after the other, and check that each answer is complete:
the requested number of tokens, a finish reason, and equal text for equal prompts. The others read
slowly, disconnect early, send garbage, huge prompts and schemas that take long to compile. A
separate process requests the tokens of a short text 20 times per second: its waiting times show how
clients delay each other. The exit code is 1 if an answer is lost or differs, if a wait exceeds
`--longest-wait`, if memory grows by more than `--growth` after the first quarter, or if the server
does not shut down cleanly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from npu_llm.serving.client import WORDS, Percentiles

QUESTIONS, PROBES_PER_S = 40, 20
CACHE_MB = 256  # which the first minutes' requests fill


class Soak:
    """The clients of one server, and their findings."""

    def __init__(self, port: int, seconds: float, seed: int) -> None:
        self.port = port
        self.seconds = seconds
        self.counts: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.tokens = 0
        self.first_s: list[float] = []
        self._answers: dict[int, str] = {}
        self._end = 0.0
        self._random = random.Random(seed)
        self._questions = [
            (" ".join(self._random.choices(WORDS, k=self._random.randint(8, 120))),
             self._random.randint(16, 64))
            for _ in range(QUESTIONS)
        ]  # fmt: skip

    async def run(self, clients: int) -> None:
        """Runs all clients until the time is over."""
        self._end = time.monotonic() + self.seconds
        bad = clients // 10
        await asyncio.gather(
            *(self._behave() for _ in range(clients - bad)),
            *(self._misbehave() for _ in range(bad)),
        )

    async def _behave(self) -> None:
        while time.monotonic() < self._end:
            try:
                await self._question()
            except (OSError, EOFError, ValueError, IndexError) as failure:
                self.lost[f"{type(failure).__name__}: {failure}"] += 1
            self.counts["question"] += 1

    async def _misbehave(self) -> None:
        kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self._leave, self._read_slowly, self._garbage, self._giant, self._schema,
        )  # fmt: skip
        while time.monotonic() < self._end:
            work = self._random.choice(kinds)
            with suppress(OSError, TimeoutError):  # the server may end such a connection
                await work()
            self.counts[work.__name__.strip("_")] += 1
            await asyncio.sleep(0.2)

    # Well-behaved

    async def _question(self) -> None:
        number = self._random.randrange(QUESTIONS)
        text, new_tokens = self._questions[number]
        started = time.perf_counter()
        found, usage, finish = [], {}, None
        async with self._connection() as (reader, writer):
            self._post(writer, "/v1/chat/completions", _chat(text, new_tokens))
            status = int((await reader.readline()).split()[1])
            async for event in _events(reader):
                if "error" in event:
                    finish = f"error: {event['error'].get('code')}"
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    finish = choice.get("finish_reason") or finish
                    if piece := choice["delta"].get("content"):
                        if not found:
                            self.first_s.append(time.perf_counter() - started)
                        found.append(piece)
        if status != 200 or finish != "length" or usage.get("completion_tokens") != new_tokens:
            self.lost[f"status {status}, end {finish}, {usage.get('completion_tokens')}"] += 1
            return
        self.tokens += new_tokens
        if self._answers.setdefault(number, "".join(found)) != "".join(found):
            self.counts["differs"] += 1

    # Misbehaving

    async def _leave(self) -> None:
        async with self._connection() as (reader, writer):
            self._post(writer, "/v1/chat/completions", _chat("Go on for long.", 1000))
            await reader.read(self._random.randint(1, 4000))
            if self._random.random() < 0.5:  # without a goodbye
                writer.transport.abort()

    async def _read_slowly(self) -> None:
        async with self._connection(limit=64) as (reader, writer):
            self._post(writer, "/v1/chat/completions", _chat("Go on for long.", 400))
            for _ in range(100):
                if not await reader.read(16):
                    break
                await asyncio.sleep(0.2)

    async def _garbage(self) -> None:
        body = b'{"messages": [{"role": "user", "content": "'
        pieces = (
            self._random.randbytes(2000),
            b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999\r\n\r\n" + body,
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
            self._request("/v1/chat/completions", b"\xff\xfe" + body),
            self._request("/api/chat", b"[" * 100_000),
            self._request("/v1/messages", b'{"max_tokens": 1e999}'),
        )
        async with self._connection() as (reader, writer):
            writer.write(self._random.choice(pieces))
            await asyncio.wait_for(reader.read(1000), 2)

    async def _giant(self) -> None:
        sizes: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: _chat("river " * 1_300_000, 8),
            lambda: _chat("x1 " * 14_000, 8),
            lambda: _chat("a", 8) | {"messages": [{"role": "user", "content": "b"}] * 20_000},
            lambda: {"prompt": [5] * 500_000, "max_tokens": 8},
            lambda: _chat(" ".join(self._random.choices(WORDS, k=1500)), 8),
        )
        body = self._random.choice(sizes)()
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        await self._whole(path, body)
        await self._whole("/tokenize", {"content": "ab cd " * 300_000})

    async def _schema(self) -> None:
        deep: dict[str, Any] = {"type": "integer", "multipleOf": 1_000_003}
        wide = {"type": "object", "properties": {f"p{i}": {"enum": list(range(200))}
                                                 for i in range(200)}}  # fmt: skip
        tree = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {
            "type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 50}]}}}  # fmt: skip
        schema = self._random.choice((deep, wide, tree))
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        await self._whole("/v1/chat/completions", _chat("Write.", 16) | {"response_format": form})

    # HTTP

    async def _whole(self, path: str, body: dict[str, Any]) -> None:
        async with self._connection() as (reader, writer):
            self._post(writer, path, body)
            await writer.drain()
            while await reader.read(1 << 16):
                pass

    @asynccontextmanager
    async def _connection(
        self, limit: int = 1 << 16
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        try:
            yield reader, writer
        finally:
            writer.close()

    def _post(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        writer.write(self._request(path, json.dumps(body).encode()))

    def _request(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _chat(text: str, new_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}], "max_tokens": new_tokens, "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _probe(port: int, seconds: float) -> None:
    """Prints the seconds of each request for the tokens of a short text."""
    import http.client

    waits, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/tokenize", '{"content": "a quiet river"}',
                           {"Content-Type": "application/json"})  # fmt: skip
        assert connection.getresponse().read().startswith(b'{"tokens"')
        connection.close()
        waits.append(round(time.perf_counter() - started, 4))
        time.sleep(max(0.0, 1 / PROBES_PER_S - waits[-1]))
    print(json.dumps(waits))


def _memory_mb(process: int) -> float:
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


async def _watch(soak: Soak, process: int, clients: int) -> list[float]:
    """Runs the soak; returns the server's memory, MB, every five seconds."""
    memory: list[float] = []
    running = asyncio.create_task(soak.run(clients))
    while not running.done():
        memory.append(_memory_mb(process))
        await asyncio.wait([running], timeout=5)
    await running
    return memory


def _get(port: int, path: str) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return str(response.read().decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--longest-wait", type=float, default=0.2, help="seconds")
    parser.add_argument("--growth", type=float, default=0.1, help="of memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seconds = options.minutes * 60
    if options.probe is not None:
        return _probe(options.probe, seconds)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the server
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "npu_llm.cli", "serve", "--model",
         str(options.gguf), "--port", str(port), "--cache-memory", str(CACHE_MB)],
        stdout=log, stderr=log, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    for _ in range(600):
        try:
            _get(port, "/health")
            break
        except OSError:
            time.sleep(0.2)
    soak = Soak(port, seconds, options.seed)
    probe = subprocess.Popen(
        [sys.executable, __file__, "--probe", str(port), "--minutes", str(options.minutes)],
        stdout=subprocess.PIPE,
    )
    memory = asyncio.run(_watch(soak, server.pid, options.clients))
    waits = json.loads(probe.communicate()[0])
    time.sleep(3)  # the rest of unread answers
    left = re.findall(r"vllm:num_requests_\w+{.*} (\S+)", _get(port, "/metrics"))
    server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=60)
    log.seek(0)
    _, *found = log.read().decode(errors="replace").split("Traceback")
    if found:
        print(f"Traceback{found[0][:4000]}", file=sys.stderr)
    settled = memory[len(memory) // 4 :]
    growth = settled[-1] / settled[0] - 1
    first, wait = Percentiles.of(soak.first_s), Percentiles.of(waits)
    assert first is not None, "some were answered"
    assert wait is not None, "some were answered"
    report = {
        "minutes": options.minutes, "clients": options.clients, "did": dict(soak.counts),
        "lost": dict(soak.lost), "tokens_per_s": round(soak.tokens / seconds, 1),
        "first_token_s": vars(first), "wait_s": vars(wait) | {"longest_s": max(waits)},
        "waits_over": sum(one > options.longest_wait for one in waits), "waits": len(waits),
        "memory_mb": {"after a quarter": settled[0], "end": settled[-1], "most": max(memory)},
        "running_at_end": left, "exit_code": code, "tracebacks": len(found),
    }  # fmt: skip
    print(json.dumps(report, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    is_clean = code == 0 and not found and not any(float(one) for one in left)
    is_even = not soak.lost and max(waits) <= options.longest_wait and growth <= options.growth
    sys.exit(0 if is_clean and is_even else 1)


if __name__ == "__main__":
    main()
