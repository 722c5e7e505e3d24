"""Runs the mixed load until the time is over and fails when something grows or goes wrong.

Prints one line of JSON for each round and a last one with the verdict. What a round does to the
streams is in mixed_load.py; what it does besides, and how growth is judged, is here.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from mixed_load import Load, Programs, run_load

import npu_runtime
from npu_runtime import sim
from npu_runtime.config import config

# Growth over the judged part of a run that is not noise: of the process in MiB, of the rest by one.
RSS_LIMIT_MIB = 24.0
WARM_UP_SHARE = 0.25


@dataclass(frozen=True)
class Sample:
    """Resources of the process after a round."""

    seconds: float
    rounds: int
    rss_mib: float
    files: int
    threads: int
    allocated_bytes: int
    reserved_mib: float


def take_sample(seconds: float, rounds: int) -> Sample:
    gc.collect()
    torch.npu.synchronize()
    stats = torch.npu.memory_stats()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Sample(
        seconds=round(seconds, 1),
        rounds=rounds,
        rss_mib=round(int(status["VmRSS"].split()[0]) / 1024, 1),
        files=len(list(Path("/proc/self/fd").iterdir())),
        threads=int(status["Threads"]),
        allocated_bytes=stats["allocated_bytes.all.current"],
        reserved_mib=round(stats["reserved_bytes.all.current"] / 2**20, 1),
    )


def growth(samples: Sequence[Sample], name: str) -> float:
    """The rise of a value over the samples, by a least-squares line."""
    times = [sample.seconds for sample in samples]
    values = [float(getattr(sample, name)) for sample in samples]
    mean_time, mean_value = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - mean_time) ** 2 for at in times)
    if spread == 0:
        return 0.0
    slope = sum(
        (at - mean_time) * (value - mean_value) for at, value in zip(times, values, strict=True)
    )
    return slope / spread * (times[-1] - times[0])


def verdict(samples: Sequence[Sample]) -> dict[str, Any]:
    """The growth of each value after the warm-up, and which of them is too much."""
    judged = samples[int(len(samples) * WARM_UP_SHARE) :]
    limits = {
        "rss_mib": RSS_LIMIT_MIB,
        "files": 1.0,
        "threads": 1.0,
        "allocated_bytes": 4096.0,
        "reserved_mib": RSS_LIMIT_MIB,
    }
    grown = {name: round(growth(judged, name), 2) for name in limits}
    return {
        "rounds": samples[-1].rounds,
        "seconds": samples[-1].seconds,
        "growth": grown,
        "too_much": [name for name, limit in limits.items() if grown[name] >= limit],
    }


def other_work(folder: Path) -> None:
    """Other uses of the device by a program than enqueueing: created, used and released once."""
    programs = Programs.load(folder)
    x = torch.arange(64.0, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        programs.step.run([x])
    graph.replay()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    twin = copy.deepcopy(model).to("npu")
    optimizer = torch.optim.AdamW(twin.parameters())
    for _ in range(3):
        with torch.autocast("npu"):
            loss = twin(torch.randn(8, 16, device="npu")).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    buffer = io.BytesIO()
    torch.save(twin.state_dict(), buffer)
    buffer.seek(0)
    model.load_state_dict(torch.load(buffer, map_location="cpu"))
    torch.from_dlpack(x[3:]).add_(1)
    torch.npu.as_cpu(x).mul_(2)
    torch.ones(5000).pin_memory().to("npu", non_blocking=True).resize_(9000).sum().item()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 60, dtype=torch.uint8, device="npu")
    if config.driver == "sim":
        with sim.failure("request_run"):
            result = programs.step.run([x])[0]
            with pytest.raises(RuntimeError, match="request_run"):
                result.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--operations", type=int, default=400, help="of each thread in a round")
    parser.add_argument("--delay-us", type=int, default=100, help="longest delay, on sim")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        help="a value that may grow: AddressSanitizer's own records make rss_mib do so",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    expected: dict[int, list[int]] = {}
    samples: list[Sample] = []
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = Programs.load(folder)
        rounds = 0
        while not samples or time.monotonic() - start_s < arguments.minutes * 60:
            seed = rounds % 5
            with sim.delay(0, arguments.delay_us, seed=rounds):
                digests = run_load(Load(operations=arguments.operations, seed=seed), programs)
            if expected.setdefault(seed, digests) != digests:
                raise AssertionError(f"round {rounds}, seed {seed}: {digests} != {expected[seed]}")
            with ThreadPoolExecutor(1) as thread:  # a new thread each time
                thread.submit(other_work, folder).result()
            rounds += 1
            samples.append(take_sample(time.monotonic() - start_s, rounds))
            print(json.dumps(asdict(samples[-1])), flush=True)
    result = verdict(samples) | {"driver": npu_runtime.device_info().driver}
    print(json.dumps(result), flush=True)
    if grown := [name for name in result["too_much"] if name not in arguments.ignore]:
        sys.exit(f"`soak` must not grow: {grown}")


if __name__ == "__main__":
    main()
