"""Intel's compiler compiles a sample; `nox -s "tests(target-compiler)"` brings it and runs this."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from torch import nn

import npu_compiler
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.openvino_core import openvino_core
from npu_compiler.target_compiler import TargetCompiler, find_target
from npu_compiler.target_compiler.install import LATEST
from npu_compiler.target_compiler.installed import find_beginning
from npu_compiler.target_compiler.sources import find_source
from npu_compiler.target_compiler.vcl_process import Limits

pytestmark = pytest.mark.skipif(
    os.environ.get("NPU_TESTS_COMPILER") != "1", reason="compiles with Intel's compiler"
)

# The folder of the user's caches, before the tests get a separate one.
_INSTALLED = os.environ.get("NPU_COMPILE_CACHE_DIR")
TARGETS = ("3720", "4000", "5010")


@pytest.fixture(scope="module")
def make_compiler(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., TargetCompiler]]:
    """Creates compilers of the installed release; their reports are kept for this run."""
    made: list[TargetCompiler] = []
    reports = tmp_path_factory.mktemp("reports")

    def make(name: str = "reports", limits: Limits | None = None) -> TargetCompiler:
        compiler = TargetCompiler(find_source(LATEST), limits=limits, cache_dir=reports / name)
        made.append(compiler)
        return compiler

    with pytest.MonkeyPatch.context() as patch:
        if _INSTALLED is None:
            patch.delenv("NPU_COMPILE_CACHE_DIR")
        else:
            patch.setenv("NPU_COMPILE_CACHE_DIR", _INSTALLED)
        yield make
        for compiler in made:
            compiler.close()


@pytest.fixture(scope="module")
def compiler(make_compiler: Callable[..., TargetCompiler]) -> TargetCompiler:
    """A compiler for the tests of this module."""
    return make_compiler()


def exported(folder: Path, module: nn.Module, *inputs: torch.Tensor) -> ov.Model:
    """Returns the program that an export in float16 holds."""
    npu_compiler.export(module.eval(), inputs, folder, dtype="float16")
    return openvino_core().read_model(folder / "model.xml")


def perceptron(width: int = 64) -> ov.Model:
    x = ops.parameter([1, width], np.float32, name="x")
    weight = ops.constant(np.random.default_rng(0).standard_normal((width, width), np.float32))
    hidden = ops.relu(ops.matmul(x, weight, False, True))
    return ov.Model([ops.matmul(hidden, weight, False, True)], [x], "perceptron")


def without_elements() -> ov.Model:
    """A program with a result without elements: release 2026.4.1 ends its process on it."""
    x = ops.parameter([1, 1, 4], np.float32, name="x")
    first, none, one, axis = (ops.constant(np.array([value])) for value in (0, 0, 1, 2))
    return ov.Model([ops.slice(x, first, none, one, axis)], [x], "empty")


def batched_heads() -> ov.Model:
    """Rows as a batch, heads and rotate-half: refused by pass ConvertBatchedLayerTo1N."""
    x = ops.parameter([16, 1, 32], np.float32, name="x")
    weight = ops.constant(np.random.default_rng(0).standard_normal((32, 32), np.float32))
    product = ops.matmul(x, weight, False, True)
    split = ops.reshape(product, np.array([16, 1, 4, 8]), False)
    heads = ops.transpose(split, np.array([0, 2, 1, 3]))

    def cut(begin: int, end: int) -> ov.Node:
        at = [ops.constant(np.array([value])) for value in (begin, end, 1, 3)]
        return ops.slice(heads, *at)

    turned = ops.concat([ops.negative(cut(4, 8)), cut(0, 4)], 3)
    return ov.Model([turned], [x], "heads")


def test_version_is_read_from_the_compiler(compiler):
    assert re.match(r"20\d\d\.\d+\.\d+-", compiler.version)


@pytest.mark.parametrize("target", TARGETS)
def test_small_perceptron_is_accepted_with_an_estimate(compiler, target):
    report = compiler.compile(perceptron(), target)
    assert report.is_accepted, report.reason
    assert report.blob.stat().st_size == report.blob_bytes > 0
    assert 0 < report.estimate.latency_ms < 1
    assert set(report.estimate.shares) == {"DMA", "DPU", "SHAVE"}
    rows = {task["row"] for task in json.loads(report.schedule.read_text())["tasks"]}
    assert any(row.startswith("DMA") for row in rows)
    assert any(row.startswith("DPU") for row in rows)


def test_refusal_has_the_compilers_words_and_begins_with_an_operation(compiler):
    model = batched_heads()
    report = compiler.compile(model, "4000")
    assert not report.is_accepted
    assert report.blob is None
    assert report.estimate is None
    assert "ConvertBatchedLayerTo1N" in report.reason
    assert report.operation == ""
    turned = model.outputs[0].get_node().input_value(0).get_node()
    begins = find_beginning(compiler, model, find_target("4000"), report)
    assert begins == turned.get_friendly_name()


def test_refusal_names_the_operation(compiler):
    x = ops.parameter([1, -1], np.float32, name="x")
    rectified = ops.relu(x)
    rectified.set_friendly_name("rectified")
    report = compiler.compile(ov.Model([rectified], [x], "varies"), "4000")
    assert not report.is_accepted
    assert "bounds are not specified" in report.reason
    assert report.operation == "rectified"


def test_process_that_ends_is_a_verdict_and_the_next_model_compiles(make_compiler):
    compiler = make_compiler("ended")
    ended = compiler.compile(without_elements(), "4000")
    assert not ended.is_accepted
    assert ended.reason.startswith("its process ended")
    assert compiler.compile(perceptron(32), "4000").is_accepted


def test_limit_ends_a_compilation_and_the_report_is_not_kept(make_compiler):
    compiler = make_compiler("limited")
    stopped = compiler.compile(perceptron(), "4000", limits=Limits(duration_s=0.0))
    assert not stopped.is_accepted
    assert "did not answer within" in stopped.reason
    assert compiler.compile(perceptron(), "4000").is_accepted


def test_kept_report_starts_no_process(compiler, make_compiler, monkeypatch):
    model = perceptron(48)
    first = compiler.compile(model, "4000")
    another = make_compiler()
    monkeypatch.setattr(type(compiler.source), "start", None)
    assert another.compile(model, "4000") == first


def test_two_processes_compile_at_once(make_compiler):
    compilers = [make_compiler(name) for name in ("one", "other")]
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(lambda each: each.compile(perceptron(96), "4000"), compilers)
    assert one.is_accepted
    assert one.blob_bytes == other.blob_bytes
    assert one.estimate.latency_ms == other.estimate.latency_ms


class Block(nn.Module):
    """A residual block of ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside),
            nn.ReLU(), nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def test_convolutional_network_is_accepted_as_it_is_exported(compiler, tmp_path):
    network = nn.Sequential(
        nn.Conv2d(3, 32, 7, 2, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    model = exported(tmp_path / "network", network, torch.randn(1, 3, 112, 112))
    report = compiler.compile(model, "4000")
    assert report.is_accepted, report.reason
    assert report.estimate.shares["DPU"] > 0


class DecodeStep(nn.Module):
    """One token of a Llama after a past of fixed length."""

    def __init__(self, config) -> None:
        super().__init__()
        from transformers import LlamaForCausalLM

        self.model = LlamaForCausalLM(config)
        self.config = config

    def forward(self, ids, positions, mask, *past):
        from transformers import DynamicCache

        cache = DynamicCache(config=self.config)
        for layer in range(self.config.num_hidden_layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        called = self.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        return called.logits, cache.layers[0].keys[:, :, -1:]


def test_decode_step_of_a_llama_is_accepted_as_it_is_exported(compiler, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    past = [torch.randn(1, 2, 31, 16) for _ in range(4)]
    inputs = (torch.tensor([[3]]), torch.tensor([[31]]), torch.zeros(1, 1, 1, 32), *past)
    model = exported(tmp_path / "step", DecodeStep(config), *inputs)
    for target in ("4000", "5010"):
        report = compiler.compile(model, target)
        assert report.is_accepted, report.reason


def test_export_has_a_blob_for_each_target_which_the_plugin_hands_to_a_device(
    make_compiler, tmp_path
):
    layer, x = nn.Linear(16, 8).eval(), torch.randn(2, 16)
    folder = npu_compiler.export(layer, (x,), tmp_path / "layer", targets=TARGETS)
    blobs = read_manifest(folder).blobs
    assert [blob.target for blob in blobs] == list(TARGETS)
    for blob in blobs:
        content = (folder / blob.file).read_bytes()
        assert content.startswith(b"\x7fELF")
        assert blob.estimate["latency_ms"] > 0
        with pytest.raises(RuntimeError, match="No backend registered during model import"):
            openvino_core().import_model(content, "NPU", {"NPU_IMPORT_RAW_BLOB": "YES"})
    assert npu_compiler.load(folder, device="CPU").compiled_because is None
