"""The compiled form of an exported model is kept, so that the next load compiles nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler.exported import load as loading

SCRIPT = """
import sys
import numpy as np
import npu_compiler
loaded = npu_compiler.load(sys.argv[1])
y = loaded(np.ones((2, 8), np.float32))
assert "torch" not in sys.modules
print(loaded.from_cache, float(np.asarray(y).sum()))
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()


X = torch.ones(2, 8)


def exported(path: Path, seed: int = 0, **options: object) -> Path:
    npu_compiler.export(net(seed), (X,), path, **options)
    return path


def load(path: Path) -> tuple[bool, float]:
    """Loads and runs; returns whether nothing was compiled, and the sum of the results."""
    loaded = npu_compiler.load(path)
    return loaded.from_cache, float(np.asarray(loaded(X.numpy())).sum())


@pytest.fixture
def load_afresh(cache: Path, without_torch: dict[str, str]) -> Callable[[Path], tuple[bool, float]]:
    """Loads and runs in a process without torch."""

    def load(path: Path) -> tuple[bool, float]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path)],
            env=without_torch, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        is_cached, total = done.stdout.split()
        return is_cached == "True", float(total)

    return load


def test_the_second_load_compiles_nothing(cache, tmp_path, load_afresh):
    path = exported(tmp_path / "model")
    expected = float(net()(X).detach().sum())
    first, second = load_afresh(path), load_afresh(path)
    assert (first[0], second[0]) == (False, True)
    assert first[1] == pytest.approx(expected, rel=1e-4)
    assert second[1] == first[1]


@pytest.mark.parametrize("device", [None, "CPU"], ids=["tensors", "arrays"])
def test_results_are_the_same_in_a_process_with_torch(cache, tmp_path, close, device):
    path = exported(tmp_path / "model")
    for is_cached in (False, True):
        loaded = npu_compiler.load(path, device=device)
        assert loaded.from_cache is is_cached
        found = torch.from_numpy(np.array(loaded(X.numpy())))
        close(found, net()(X))


def test_bfloat16_ports_are_exchanged_in_the_kept_model_too(cache, tmp_path):
    model = nn.Linear(8, 4).bfloat16().eval()
    npu_compiler.export(model, (X.bfloat16(),), tmp_path / "model")
    results = []
    for is_cached in (False, True):
        loaded = npu_compiler.load(tmp_path / "model", device="CPU")
        assert loaded.from_cache is is_cached
        results.append(loaded(X.numpy()))
    np.testing.assert_array_equal(*results)


def test_other_weights_at_the_same_path_are_compiled(cache, tmp_path, close):
    path = exported(tmp_path / "model")
    npu_compiler.load(path)
    exported(path, seed=1, overwrite=True)
    loaded = npu_compiler.load(path)
    assert not loaded.from_cache
    close(loaded(X), net(1)(X))


def test_one_changed_element_is_another_model(cache, tmp_path):
    path = exported(tmp_path / "model")
    before = npu_compiler.load(path, device="CPU")(X.numpy())
    weights = bytearray((path / "model.bin").read_bytes())
    # The sign of the first float32.
    weights[3] ^= 0x80
    (path / "model.bin").write_bytes(weights)
    manifest = json.loads((path / "manifest.json").read_text())
    from npu_compiler.programs.blobs import fingerprint

    manifest["files"]["model.bin"] = fingerprint(path / "model.bin")
    (path / "manifest.json").write_text(json.dumps(manifest))
    loaded = npu_compiler.load(path, device="CPU")
    assert not loaded.from_cache
    assert not np.array_equal(loaded(X.numpy()), before)


def test_another_precision_is_another_model(cache, tmp_path):
    npu_compiler.load(exported(tmp_path / "one"))
    assert not npu_compiler.load(exported(tmp_path / "two", dtype="bfloat16")).from_cache


def test_a_folder_that_is_read_only_is_loaded_from_the_cache(cache, tmp_path):
    path = exported(tmp_path / "model")
    before = sorted(file.name for file in path.iterdir())
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    assert [load(path)[0] for _ in range(2)] == [False, True]
    path.chmod(0o755)
    assert sorted(file.name for file in path.iterdir()) == before


def test_a_damaged_blob_is_compiled_again(cache, tmp_path):
    path = exported(tmp_path / "model")
    expected = load(path)[1]
    for blob in cache.glob("*/blob/*.blob"):
        blob.write_bytes(blob.read_bytes()[:100])
    assert load(path) == (False, expected)
    assert load(path) == (True, expected)


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(cache, tmp_path):
    path = exported(tmp_path / "model")
    shutil.rmtree(cache, ignore_errors=True)  # exporting compared the model with torch
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("no directory")
    assert [load(path)[0] for _ in range(2)] == [False, False]


def test_a_cache_of_size_zero_keeps_nothing(cache, tmp_path, monkeypatch):
    path = exported(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setenv("NPU_COMPILE_CACHE_SIZE_MB", "0")
        assert not load(path)[0]
    assert not load(path)[0]


def test_the_cache_of_programs_lists_and_clears_it(cache, tmp_path, load_afresh):
    from npu_compiler.programs import ProgramCache

    path = exported(tmp_path / "model")
    load_afresh(path)
    entries = ProgramCache().entries()  # one of the comparison at export, one of load
    assert len(entries) == 2
    assert all(entry.size_bytes > 1000 for entry in entries)
    ProgramCache().clear()
    assert not load_afresh(path)[0]


@pytest.fixture
def asked(monkeypatch):
    """The shapes of the models that torch's device loads, which takes one shape in each."""
    found = []
    load = loading.with_fixed_shapes

    def told(path, shapes, place):
        found.append(shapes)
        return load(path, shapes, place)

    monkeypatch.setattr(loading, "with_fixed_shapes", told)
    monkeypatch.setattr(loading, "has_one_shape", lambda device: True)
    return found


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Softmax(-1), nn.Linear(8, 3)).eval()


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    """It with two sizes that vary; its compiled forms are kept in a folder of the test."""
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model"
    npu_compiler.export(model, (torch.randn(2, 5, 6),), path, dynamic={"input": (0, 1)})
    return path


def test_each_shape_has_a_program_that_the_next_load_finds(asked, model, folder, close):
    calls = [torch.randn(2, 5, 6), torch.randn(4, 1, 6), torch.randn(2, 5, 6)]
    for is_first in (True, False):
        asked.clear()
        loaded = npu_compiler.load(folder)
        assert asked == []
        for x in calls:
            close(loaded(x), model(x))
        assert asked == [((2, 5, 6),), ((4, 1, 6),)]
        if not is_first:
            assert loaded.from_cache


def test_a_folder_that_was_moved_finds_its_weights(asked, model, folder, close, tmp_path):
    x = torch.randn(3, 2, 6)
    close(npu_compiler.load(folder)(x), model(x))
    shutil.move(folder, tmp_path / "other")
    close(npu_compiler.load(tmp_path / "other")(x), model(x))


def test_few_programs_are_kept(asked, folder):
    loaded = npu_compiler.load(folder)
    asked.clear()
    for tokens in (*range(1, 10), 9, 1):
        loaded(torch.randn(1, tokens, 6))
    assert [shapes[0][1] for shapes in asked] == [*range(1, 10), 1]


def test_arrays_have_a_program_for_each_shape_too(asked, model, folder):
    loaded = npu_compiler.load(folder, device="CPU")
    for shape in ((2, 5, 6), (1, 3, 6), (2, 5, 6)):
        x = torch.randn(shape)
        expected = model(x).detach().numpy()
        np.testing.assert_allclose(loaded(x.numpy()), expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_kept_where_nothing_may(asked, model, folder, close, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_CACHE_SIZE_MB", "0")
    x = torch.randn(3, 2, 6)
    close(npu_compiler.load(folder)(x), model(x))
