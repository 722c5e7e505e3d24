"""State that changes without its version counter: each call uses the current values."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler.errors import OptionError
from npu_compiler.graph_compiler import compiled_graph
from npu_runtime import _C, FrozenTensors


class Model(nn.Module):
    """Weights that are large, small, tied, a buffer, or a plain attribute over numpy's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(96, 96)
        self.second = nn.Linear(96, 96, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.linspace(1, 2, 96))
        self.array = np.linspace(-1, 1, 96, dtype=np.float32)
        self.offset = torch.from_numpy(self.array)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu() * self.scale) + self.offset


def set_in_storage(model: Model) -> None:
    model.first.weight.untyped_storage()[16_003] = 65  # a byte of an exponent


def write_flat(model: Model) -> None:
    """Parameters that are parts of one tensor, as in optimizers and DDP."""
    flat = model.first.weight.data.view(-1)
    torch.from_numpy(flat.numpy())[-1:].add_(5)


CHANGES: dict[str, Callable[[Model], Any]] = {
    "data": lambda model: model.first.weight.data.mul_(2),
    "one element at the end": lambda model: model.first.weight.data[-1, -1:].add_(9),
    "one element inside": lambda model: model.first.weight.data[40, 40:41].add_(9),
    "data of the bias": lambda model: model.first.bias.data.zero_(),
    "data of a buffer": lambda model: model.scale.data.fill_(3),
    "a numpy alias": lambda model: np.multiply(
        model.first.weight.detach().numpy(), 2, out=model.first.weight.detach().numpy()
    ),
    "DLPack": lambda model: torch.from_dlpack(model.first.weight.detach()).mul_(2),
    "foreach": lambda model: torch._foreach_mul_([p.data for p in model.parameters()], 2.0),
    "a storage": set_in_storage,
    "a plain attribute": lambda model: model.array.__setitem__(3, 7),
    "a flat view": write_flat,
    "set_": lambda model: model.first.bias.data.set_(torch.ones(96)),
}


@pytest.fixture(params=[True, False], ids=["pages", "bytes"])
def _either_way(request: pytest.FixtureRequest) -> Any:
    _C.want_written_pages(request.param)
    yield
    _C.want_written_pages(True)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("rows", [2, 20])
def test_each_change_takes_effect_at_the_next_call(rows, monkeypatch):
    monkeypatch.setattr(compiled_graph, "_REBUILDS", 100)  # else weights become inputs
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model().eval()
    fast = torch.compile(model, backend="npu")
    x = torch.randn(rows, 96)
    with torch.no_grad():
        for name, change in CHANGES.items():
            for _ in range(2):
                torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4, msg=name)
            change(model)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["data", "a numpy alias"])
def test_a_model_compiled_in_place_and_recalled_follows(name):
    for seed in range(2):  # the second recalls the first one's entry in the cache
        torch._dynamo.reset()
        torch.manual_seed(7)
        model, x = Model().eval(), torch.randn(3, 96)
        fast = npu_compiler.compile(model)
        with torch.no_grad():
            fast(x)
            CHANGES[name](model)
            expected = Model.forward(model, x)
            torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4, msg=str(seed))


def test_npu_weights_written_through_data_take_effect():
    model, x = nn.Linear(96, 96).to("npu").eval(), torch.randn(2, 96, device="npu")
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        fast(x)
        model.weight.data.mul_(2)
        torch.testing.assert_close(fast(x).cpu(), model(x).cpu(), rtol=1e-4, atol=1e-4)


def _write(tensor: torch.Tensor) -> None:
    tensor.data.mul_(2)


def test_what_another_process_writes_takes_effect():
    model, x = nn.Linear(96, 96).eval(), torch.randn(2, 96)
    model.share_memory()
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        fast(x)
        process = multiprocessing.get_context("spawn").Process(target=_write, args=(model.weight,))
        process.start()
        process.join()
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_equal_bytes_make_no_new_program(compiled):
    model, x = nn.Linear(96, 96).eval(), torch.randn(2, 96)
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(5):
            model.weight.data.copy_(model.weight.data.clone())
            fast(x)
    assert len(fast.records) == 1


def test_without_checks_refresh_makes_changes_take_effect():
    model, x = nn.Linear(96, 96).eval(), torch.randn(2, 96)
    fast = torch.compile(model, backend="npu", options={"check_weights": False})
    with torch.no_grad():
        before = fast(x)
        model.weight.data.mul_(2)
        torch.testing.assert_close(fast(x), before)
        npu_compiler.refresh(model)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_file_rewritten_beneath_a_mapping_is_seen_after_refresh(tmp_path):
    path = tmp_path / "weights"
    np.ones(96 * 96, dtype=np.float32).tofile(path)
    model, x = nn.Linear(96, 96, bias=False).eval(), torch.randn(2, 96)
    mapped = torch.from_file(str(path), shared=False, size=96 * 96).view(96, 96)
    model.weight = nn.Parameter(mapped, requires_grad=False)
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        fast(x)
        with path.open("r+b") as file:
            np.full(96 * 96, 3, dtype=np.float32).tofile(file)
        npu_compiler.refresh(model)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_refresh_takes_models_alone():
    with pytest.raises(OptionError, match="got int") as caught:
        npu_compiler.refresh(3)  # type: ignore[arg-type]
    assert caught.value.code == "compile-module"


def test_frozen_tensors_are_suspected_together():
    weight = torch.ones(5000)
    frozen = FrozenTensors.unwatched([0], [weight])
    weight.numpy()[:] = 2
    assert frozen.is_current([weight])
    FrozenTensors.suspect_all()
    assert frozen.changed([weight]) == [0]
