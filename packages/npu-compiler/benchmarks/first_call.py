"""Measures first results of npu, OpenVINO's backend, Inductor and others, cold and warm.

Run from the root of the repository, on an idle machine:

    python packages/npu-compiler/benchmarks/first_call.py --rounds 3

Each figure is from a new process. "cold" is the first call with an empty cache, "warm" the first
call of a second process with the first one's cache; OpenVINO's backend has none by default.
"npu_compiler.compile" compiles the module in place; "npu_compiler.load" loads an exported folder,
in a process without torch. "wall" is the time from a model to its first result: the import of the
backend's integration (openvino.torch; npu has none), torch.compile, and the first call. "call" is
the first call alone. Imports of torch and transformers, and the model's construction, are not
timed. "cpu" is the processor time of the process and its children, which other work on the machine
affects less. Contenders alternate, and the figure is the median of the rounds. A short run:
`--models vit --contenders npu,openvino --rounds 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTENDERS = ("npu", "openvino", "inductor")
FURTHER = ("npu_compiler.compile", "npu_compiler.load")


def _unet() -> tuple[Any, dict[str, Any]]:
    import torch
    from torch import nn

    def pair(inner: int, outer: int) -> nn.Module:
        layers: list[nn.Module] = []
        for first in (inner, outer):
            layers += [nn.Conv2d(first, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        """A U-Net with four levels and skip connections."""

        def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
            super().__init__()
            ends = [3, *widths]
            self.down = nn.ModuleList(map(pair, ends, widths))
            self.up = nn.ModuleList(
                nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[:-1]
            )
            self.merge = nn.ModuleList(pair(2 * width, width) for width in widths[:-1])
            self.last = nn.Conv2d(widths[0], 1, 1)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            """Returns one channel of the input's size."""
            kept = []
            for index, block in enumerate(self.down):
                pixels = block(pixels if index == 0 else nn.functional.max_pool2d(pixels, 2))
                kept.append(pixels)
            for index in reversed(range(len(self.up))):
                pixels = self.merge[index](torch.cat([kept[index], self.up[index](pixels)], 1))
            return self.last(pixels)

    return UNet(), {"pixels": torch.randn(1, 3, 192, 192)}


def _of_compile(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def build() -> tuple[Any, dict[str, Any]]:
        from compile import MODELS as published  # next to this file

        return published[name](1)

    return build


# Names as in compile.py.
MODELS = {name: _of_compile(name) for name in ("bert", "llama", "resnet", "vit")} | {"unet": _unet}


def _built(name: str) -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def _timed(prepare: Callable[[], Callable[..., Any]], inputs: dict[str, Any]) -> dict[str, float]:
    before, started = _cpu_s(), time.perf_counter()
    compiled = prepare()
    called = time.perf_counter()
    compiled(**inputs)
    ended = time.perf_counter()
    return {"wall": ended - started, "call": ended - called, "cpu": _cpu_s() - before}


def first_result(contender: str, name: str, folder: str) -> dict[str, float]:
    """Computes a first result in this process; returns its time."""
    if contender == "npu_compiler.load":
        import numpy as np

        import npu_compiler

        given = dict(np.load(Path(folder, "inputs.npz")))

        def loaded() -> Callable[..., Any]:
            run = npu_compiler.load(folder)
            return lambda **inputs: run(*inputs.values())

        return _timed(loaded, given)
    import torch

    warnings.simplefilter("ignore")
    model, inputs = _built(name)

    def prepare() -> Callable[..., Any]:
        if contender == "npu_compiler.compile":
            import npu_compiler

            return npu_compiler.compile(model)
        options: dict[str, Any] = {"backend": contender}
        if contender == "openvino":
            import openvino.torch  # noqa: F401  (registers its backend)

            config = {"INFERENCE_PRECISION_HINT": "f32"}
            options["options"] = {"aot_autograd": True, "config": config}
        return torch.compile(model, **options)

    with torch.no_grad():
        return _timed(prepare, inputs)


def export(name: str, folder: Path) -> None:
    """Exports a model, with its inputs next to it."""
    import numpy as np

    import npu_compiler

    model, inputs = _built(name)
    npu_compiler.export(model, tuple(inputs.values()), folder)
    np.savez(folder / "inputs.npz", **{key: one.numpy() for key, one in inputs.items()})


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(contender: str, name: str, cache: Path, folder: Path) -> dict[str, float]:
    """Runs one process; returns its figures."""
    command = [sys.executable, __file__, "--child", contender, "--models", name]
    command += ["--folder", str(folder)]
    environment = {
        **os.environ,
        "NPU_COMPILE_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
    }
    done = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(name: str, contenders: list[str], rounds: int) -> None:
    """Prints the rows of one model."""
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="npu-first-call-") as place:
        folder, cache = Path(place, "exported"), Path(place, "cache")
        if "npu_compiler.load" in contenders:
            export(name, folder)
        for _ in range(rounds):
            for contender in contenders:
                shutil.rmtree(cache, ignore_errors=True)
                for state in ("cold", "warm"):
                    found = measure(contender, name, cache, folder)
                    figures.setdefault((contender, state), []).append(found)

    def median(contender: str, state: str, what: str) -> float:
        return statistics.median(one[what] for one in figures[contender, state])

    for contender in contenders:
        cells = [f"{name:8}{contender:20}"]
        for what in ("wall", "call", "cpu"):
            cold, warm = (median(contender, state, what) for state in ("cold", "warm"))
            ours = median("npu", "cold", what) if "npu" in contenders else float("nan")
            cells.append(f"{cold:8.2f} {warm:7.2f} {warm / cold:6.0%} {ours / cold:8.2f}")
        print("  ".join(cells), flush=True)


def main() -> None:
    """Prints one row per model and contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument(
        "--contenders", default=",".join(CONTENDERS), help=f"also {' and '.join(FURTHER)}"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(first_result(given.child, given.models, given.folder)))
        return
    print(f"{'':28}  {'wall, s':^34}  {'call, s':^34}  {'cpu, s':^34}")
    head = f"{'cold':>8} {'warm':>7} {'share':>6} {'npu by it':>9}"
    print(f"{'model':8}{'backend':20}  {head} {head} {head}")
    for name in given.models.split(","):
        compare(name, given.contenders.split(","), given.rounds)


if __name__ == "__main__":
    main()
