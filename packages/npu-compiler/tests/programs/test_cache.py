"""The cache on disk: hits, damage, bounds, a second process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.programs import ProgramCache, compile_options, content_key
from npu_compiler.programs.cache import find_kernels, store_kernels
from npu_compiler.programs.execution import KernelCall, KernelForm
from npu_ops.kernel_programs.program import Columns, KernelProgram, Linear, Load, Recipe, Store
from npu_ops.kernel_programs.weights import pack
from npu_runtime.errors import KindError

OPTIONS = compile_options("float32")


def model(factor: float = 2.0, size: int = 4) -> ov.Model:
    x = ops.parameter([size], ov.Type.f32)
    weights = ops.constant([factor] * size, ov.Type.f32)
    return ov.Model([ops.multiply(ops.relu(x), weights)], [x], "doubles")


def load(cache: ProgramCache, key: str, build=model):
    return cache.load(key, build, name="test", options=OPTIONS)


def result(program) -> list[float]:
    return program.run([torch.ones(4)])[0].tolist()


@pytest.fixture
def cache(tmp_path) -> ProgramCache:
    return ProgramCache(tmp_path)


@pytest.fixture
def key() -> str:
    return content_key({"model": "doubles"})


def refuse_to_build():
    raise AssertionError("the cache had it")


def test_second_load_builds_and_compiles_nothing(cache, key):
    first = load(cache, key)
    second = load(cache, key, refuse_to_build)
    assert result(first) == result(second) == [2.0] * 4
    assert not first.loaded_from_cache
    assert second.loaded_from_cache
    assert (cache.statistics.misses, cache.statistics.hits) == (1, 1)


def test_second_process_builds_and_compiles_nothing(cache, key, tmp_path):
    load(cache, key)
    script = (
        "import sys, torch\n"
        "from npu_compiler.programs import ProgramCache, compile_options, content_key\n"
        "cache = ProgramCache(sys.argv[1])\n"
        "key = content_key({'model': 'doubles'})\n"
        "def refuse_to_build(): raise AssertionError('the cache had it')\n"
        "options = compile_options('float32')\n"
        "program = cache.load(key, refuse_to_build, name='test', options=options)\n"
        "print(program.loaded_from_cache, program.run([torch.ones(4)])[0].tolist())\n"
        "assert 'openvino' not in sys.modules, 'what the cache has needs nothing of it'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True [2.0, 2.0, 2.0, 2.0]"


@pytest.mark.parametrize(
    "method, build", [("load", dict), ("load_with_facts", dict), ("load_with_facts", model)]
)
def test_a_builder_that_returns_something_else_is_refused(cache, key, method, build):
    with pytest.raises(KindError, match="`build` must return") as caught:
        getattr(cache, method)(key, build, name="test", options=OPTIONS)
    assert caught.value.code == "argument-kind"
    assert not (cache.directory / key).exists()


@pytest.mark.parametrize("name", ["model.xml", "model.bin", "entry.json"])
@pytest.mark.parametrize("damage", ["truncate", "change", "remove"])
def test_damaged_entry_is_rebuilt_with_a_log_line(cache, key, caplog, name, damage):
    load(cache, key)
    path = cache.directory / key / name
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "change":
        path.write_bytes(bytes([content[0] ^ 255]) + content[1:])
    else:
        path.unlink()
    with caplog.at_level(logging.WARNING):
        assert result(load(cache, key)) == [2.0] * 4
    assert "rebuilding" in caplog.text
    assert cache.statistics.rebuilt == 1
    assert load(cache, key, refuse_to_build).loaded_from_cache


def test_damaged_blob_is_compiled_again(cache, key, caplog):
    load(cache, key)
    blobs = [p for p in (cache.directory / key / "blob").iterdir() if p.name != "blobs.json"]
    blobs[0].write_bytes(blobs[0].read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        program = load(cache, key, refuse_to_build)
    assert result(program) == [2.0] * 4
    assert not program.loaded_from_cache
    assert "compiling again" in caplog.text


def test_killed_writer_leaves_nothing_that_is_read(cache, key):
    cache.directory.mkdir(parents=True)
    partial = cache.directory / f".{key}.killed"
    partial.mkdir()
    (partial / "model.xml").write_text("<half")
    assert result(load(cache, key)) == [2.0] * 4


def test_directory_that_cannot_be_written_still_runs(key, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with caplog.at_level(logging.WARNING):
        assert result(load(ProgramCache(blocked), key)) == [2.0] * 4
    assert "cannot store" in caplog.text


def test_size_is_bounded_by_last_use(tmp_path):
    import os

    cache = ProgramCache(tmp_path, max_bytes=2_500_000)
    keys = [content_key({"n": n}) for n in range(3)]
    for age, key in enumerate(keys):
        load(cache, key, lambda: model(size=250_000))
        stamp = 1_000_000 + age
        os.utime(cache.directory / key / "entry.json", (stamp, stamp))
    kept = {path.name for path in cache.directory.iterdir()}
    assert keys[2] in kept
    assert keys[0] not in kept
    assert cache.statistics.evicted >= 1


def test_key_depends_on_parts_and_device_and_versions(monkeypatch):
    base = content_key({"model": "a"})
    assert base == content_key({"model": "a"})
    assert base != content_key({"model": "b"})
    assert base != content_key({"model": "a"}, device="another")
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert base != content_key({"model": "a"})


def test_entry_lists_its_files(cache, key):
    load(cache, key)
    record = json.loads((cache.directory / key / "entry.json").read_text())
    assert set(record["files"]) == {"model.xml", "model.bin"}


WEIGHT = torch.linspace(-2, 3, 15).reshape(3, 5)
FORM = KernelForm(
    program=KernelProgram(
        instructions=(
            Load(out=Columns(0, 0, 5), argument=0),
            Linear(input=Columns(0, 0, 5), out=Columns(1, 0, 3), weight="w", bias=None),
            Store(input=Columns(1, 0, 3), result=0),
        ),
        widths=(5, 3),
        weights={"w": Recipe(sources=("w",), kind="linear")},
        layers=(),
        logits=None,
        vocabulary=0,
        positions=None,
    ),
    rows=2,
    inputs=((2, 5),),
    results=((2, 3),),
    home="cpu",
    is_alone=True,
)


def test_a_program_is_found_as_it_was(cache):
    store_kernels(cache, "key", FORM, {"w": pack(WEIGHT, "float32")}, name="graph_0")
    form, weights = find_kernels(cache, "key")
    assert form == FORM
    x = torch.randn(2, 5)
    call = KernelCall(form, weights, input_names=["x"], name="kernels")
    (result,) = call(x)
    torch.testing.assert_close(result, x @ WEIGHT.t())
    assert find_kernels(cache, "another") is None


@pytest.mark.parametrize("name", ["weights.safetensors", "entry.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_one_is_not_found_and_is_made_again(cache, name, damage):
    weights = {"w": pack(WEIGHT, "float32")}
    store_kernels(cache, "key", FORM, weights, name="graph_0")
    path = cache.directory / "key" / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x55
        path.write_bytes(content)
    assert find_kernels(cache, "key") is None or name == "entry.json"
    store_kernels(cache, "key", FORM, weights, name="graph_0")
    assert find_kernels(cache, "key")[0] == FORM


def test_one_of_another_form_is_not_found(cache):
    store_kernels(cache, "key", FORM, {"w": pack(WEIGHT, "float32")}, name="graph_0")
    path = cache.directory / "key" / "entry.json"
    record = json.loads(path.read_text())
    record["facts"]["kernels"]["program"]["instructions"][0] = {"kind": "teleport"}
    path.write_text(json.dumps(record))
    assert find_kernels(cache, "key") is None
