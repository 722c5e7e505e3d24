"""Compiled graphs on disk: a second process neither lowers nor compiles."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openvino.opset15 as ops
import pytest
import torch

from npu_compiler import register_fx_node_converter
from npu_compiler.graph_compiler.records import compile_statistics

SCRIPT = """
import json, sys, torch
from npu_compiler.graph_compiler.records import compile_statistics
torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(288, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
x = torch.ones(2, 3, 8, 8)
with torch.no_grad():
    expected = model(x)
    found = torch.compile(model, backend="npu", options=json.loads(sys.argv[2]))(x)
now = compile_statistics()
print(json.dumps({"error": float((found - expected).abs().max()), "programs": now.programs,
                  "from_cache": now.from_cache}))
"""


Compile = Callable[..., dict[str, float]]


@pytest.fixture
def compile_afresh(run_python: Callable[..., Any]) -> Compile:
    """Compiles and runs in a separate process, with a directory for the cache."""

    def fresh(directory: Path, *, seed: int = 0, **options: object) -> dict[str, float]:
        environment = {**os.environ, "NPU_COMPILE_CACHE_DIR": str(directory)}
        command = [sys.executable, "-c", SCRIPT, str(seed), json.dumps(options)]
        done = run_python(command, env=environment, timeout=240)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return fresh


def entries(directory: Path) -> list[Path]:
    return [path for path in (directory / "programs").iterdir() if not path.name.startswith(".")]


def test_second_process_compiles_nothing(tmp_path, compile_afresh):
    first, second = (compile_afresh(tmp_path) for _ in range(2))
    assert (first["programs"], first["from_cache"]) == (1, 0)
    assert (second["programs"], second["from_cache"]) == (1, 1)
    assert max(first["error"], second["error"]) < 1e-5


FLIP = """
import torch, npu_compiler
from npu_compiler.graph_compiler.records import compile_statistics
x = torch.arange(4.0)
found = torch.compile(lambda x: x.flip(0).sigmoid(), backend="npu")(x)
assert (found - x.flip(0).sigmoid()).abs().max() < 1e-6, found
print(compile_statistics().from_cache)
"""


def test_a_number_beyond_int32_is_the_same_in_a_loaded_program(tmp_path, run_python):
    """The end of a reversed slice is one."""
    environment = {**os.environ, "NPU_COMPILE_CACHE_DIR": str(tmp_path)}
    for expected in ("0", "1"):
        ran = run_python([sys.executable, "-c", FLIP], env=environment, timeout=240)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split()[-1] == expected


def test_other_weights_and_options_are_other_programs(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    runs = [(0, {}), (1, {}), (0, {"dtype": "int8"}), (0, {"disabled_passes": ["fuse_linear"]})]
    for seed, options in runs:
        torch._dynamo.reset()
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.GELU()).eval()
        before = compile_statistics().from_cache
        with torch.no_grad():
            compiled(model, options=options)(torch.ones(2, 64))
        assert compile_statistics().from_cache == before
    assert len(entries(tmp_path)) == len(runs)


def test_processes_that_start_at_once_share_one_entry(tmp_path, compile_afresh):
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: compile_afresh(tmp_path), range(3)))
    assert all(result["error"] < 1e-5 for result in results)
    assert len(entries(tmp_path)) == 1


def test_damaged_entry_is_built_again(tmp_path, compile_afresh):
    compile_afresh(tmp_path)
    (entry,) = entries(tmp_path)
    with (entry / "model.bin").open("r+b") as file:
        file.truncate(100)
    again = compile_afresh(tmp_path)
    assert again["from_cache"] == 0
    assert again["error"] < 1e-5
    assert compile_afresh(tmp_path)["from_cache"] == 1


def test_directory_that_cannot_be_written_costs_the_cache_alone(compile_afresh):
    result = compile_afresh(Path("/proc/no-such-place"))
    assert (result["programs"], result["from_cache"]) == (1, 0)
    assert result["error"] < 1e-5


def test_cache_of_size_zero_keeps_nothing(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NPU_COMPILE_CACHE_SIZE_MB", "0")
    before = compile_statistics().from_cache
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            compiled(torch.nn.Linear(4, 4).eval())(torch.ones(2, 4))
    assert compile_statistics().from_cache == before
    assert not (tmp_path / "programs").exists()


def test_same_graph_twice_in_one_process_is_compiled_once(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    model = torch.nn.Linear(4, 4).eval()
    x = torch.ones(2, 4)
    with torch.no_grad():
        for expected in (0, 1):
            torch._dynamo.reset()
            before = compile_statistics().from_cache
            assert torch.allclose(compiled(model)(x), model(x), atol=1e-5)
            assert compile_statistics().from_cache - before == expected


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_compressed_program_tells_its_report_from_the_cache(
    compiled, monkeypatch, tmp_path, device
):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    model = torch.nn.Linear(256, 64).eval().to(device)
    reports = []
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            fast = compiled(model, options={"dtype": "int8"})
            fast(torch.ones(2, 256, device=device))
            reports.append(fast.records[-1].programs[0].compression)
    assert reports[0] == reports[1]
    assert len(reports[0].weights) == 1


_LIBRARY = torch.library.Library("warm_start", "DEF")
_LIBRARY.define("double(Tensor x) -> Tensor")
_LIBRARY.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
torch.library.register_fake("warm_start::double", torch.empty_like, lib=_LIBRARY)


@register_fx_node_converter(torch.ops.warm_start.double.default)
def convert_double(ctx, x):
    return ops.add(ctx.get(x), ctx.get(x))


def test_program_with_a_converter_from_outside_is_made_anew(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    with torch.no_grad():
        compiled(lambda x: torch.ops.warm_start.double(x).sin())(torch.ones(3))
    assert not (tmp_path / "programs").exists()
