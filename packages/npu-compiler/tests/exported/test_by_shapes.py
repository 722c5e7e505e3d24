"""Models of varying sizes on a device whose programs have one shape each."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler.exported import load as loading


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
