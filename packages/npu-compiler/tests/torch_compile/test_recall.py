"""Graphs found again under the identity of dynamo's graph: when they are, when they must not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from npu_compiler.graph_compiler.records import collecting, compile_statistics
from npu_compiler.programs import ProgramCache
from npu_compiler.torch_compile.graph_cache import GraphStore, RecalledGraph
from npu_runtime import ProgramError


@pytest.fixture
def again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recalled: list[RecalledGraph]
) -> Callable[..., bool]:
    """Compiles and calls, from a state as in a new process; returns whether the graph was known."""
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))

    def call(model: Any, *inputs: Any, grad: bool = False, **options: Any) -> bool:
        torch._dynamo.reset()
        recalled.clear()
        with torch.set_grad_enabled(grad):
            found = torch.compile(model, backend="npu", options=options)(*inputs)
            expected = model(*inputs)
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if options else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(found, expected, **tolerance)
        return bool(recalled)

    return call


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()


X = torch.linspace(-1, 1, 16).reshape(2, 8)


def test_a_graph_is_known_the_second_time(again):
    assert [again(net(), X) for _ in range(3)] == [False, True, True]


def test_a_known_graph_compiles_nothing(again):
    again(net(), X)
    before = compile_statistics()
    assert again(net(), X)
    after = compile_statistics()
    assert after.programs - before.programs == 1
    assert after.compiled == before.compiled


def test_its_program_is_loaded_on_another_thread(again, monkeypatch):
    again(net(), X)
    threads: list[threading.Thread] = []
    find = ProgramCache.find

    def watched(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return find(*args, **options)

    monkeypatch.setattr(ProgramCache, "find", watched)
    assert again(net(), X)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    "failure", [ProgramError("refused", code="program-compile"), KeyError("port"), None]
)
def test_a_program_that_cannot_be_loaded_is_compiled(again, monkeypatch, failure):
    again(net(), X)

    def find(*_: Any, **__: Any) -> None:
        if failure is not None:
            raise failure

    monkeypatch.setattr(ProgramCache, "find", find)
    with collecting() as records:
        assert again(net(), X)
    assert len(records) == 1
    assert records[0].lowered_count == records[0].node_count


def test_its_record_is_the_first_ones(again):
    with collecting() as records:
        again(net(), X)
        again(net(), X)
    first, second = records
    assert second.lowered_count == first.lowered_count == second.node_count
    assert [one.name for one in second.passes] == [one.name for one in first.passes]
    assert second.programs[0].constant_bytes == first.programs[0].constant_bytes
    assert (first.programs[0].from_cache, second.programs[0].from_cache) == (False, True)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_results_live_where_the_inputs_do(again, device):
    model, x = net().to(device), X.to(device)
    assert [again(model, x) for _ in range(2)] == [False, True]


def test_other_weights_are_not_known(again):
    again(net(), X)
    assert not again(net(1), X)


def test_one_changed_element_of_a_weight_is_not_known(again):
    again(net(), X)
    model = net()
    with torch.no_grad():
        model[2].weight[3, 15] += 1.0
    assert not again(model, X)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3, 8),
        torch.ones(2, 8, dtype=torch.bfloat16),
        torch.ones(8, 2).t(),
        torch.ones(2, 8).requires_grad_(),
    ],
    ids=["size", "dtype", "stride", "gradient"],
)
def test_other_inputs_are_not_known(again, x):
    again(lambda x: x.exp() * 2, torch.ones(2, 8))
    assert not again(lambda x: x.exp() * 2, x, grad=x.requires_grad)


@pytest.mark.parametrize(
    "first,second",
    [
        (lambda x: (x * 1).exp(), lambda x: (x * 1.0).exp()),
        (lambda x: (x * 0.5).exp(), lambda x: (x * 0.25).exp()),
        (lambda x: x.exp().sum(0), lambda x: x.exp().sum(1)),
        (lambda x: x.exp(), lambda x: x.sin()),
        (lambda x: (x.exp(), x.sin()), lambda x: (x.sin(), x.exp())),
        (lambda x: x.exp()[:, 1:3], lambda x: x.exp()[:, 1:4]),
    ],
    ids=["type", "number", "axis", "function", "order", "slice"],
)
def test_other_graphs_are_not_known(again, first, second):
    again(first, X)
    assert not again(second, X)


def test_other_options_are_not_known(again):
    again(net(), X)
    assert not again(net(), X, dtype="bfloat16")
    assert again(net(), X, dtype="bfloat16")


def test_autocast_is_another_graph(again):
    again(net(), X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch._dynamo.reset()
        with torch.no_grad():
            found = torch.compile(net(), backend="npu")(X)
            assert found.dtype is net()(X).dtype is torch.bfloat16


def test_default_dtype_is_another_graph(again):
    def made(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.full((8,), 0.5)).exp()

    again(made, X)
    torch.set_default_dtype(torch.float64)
    try:
        assert not again(made, X)
    finally:
        torch.set_default_dtype(torch.float32)


def written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(0.5)
    return x.exp()


def viewed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp(), x.t()


def shared(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return y, y.t()


def drawn(x: torch.Tensor) -> torch.Tensor:
    return x.exp() + 0 * torch.rand_like(x)


@pytest.mark.parametrize("function", [viewed, shared, drawn], ids=lambda f: f.__name__)
def test_more_than_one_program_takes_the_full_way(again, function):
    assert [again(function, X.clone()) for _ in range(2)] == [False, False]


def test_a_written_input_takes_the_full_way(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        torch._dynamo.reset()
        x = X.clone()
        found = torch.compile(written, backend="npu")(x)
        torch.testing.assert_close(x, X * 0.5)
        torch.testing.assert_close(found, (X * 0.5).exp())
    assert not GraphStore().directory.exists()


def test_training_takes_the_full_way(again):
    model = net()
    for _ in range(2):
        assert not again(model, X, grad=True)
        model.zero_grad()
        torch.compile(model, backend="npu")(X).sum().backward()
        assert model[0].weight.grad is not None


def test_sizes_that_vary_take_the_full_way(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            fast = torch.compile(net(), backend="npu", dynamic=True)
            for size in (2, 3, 5):
                x = torch.ones(size, 8)
                torch.testing.assert_close(fast(x), net()(x), rtol=1e-4, atol=1e-5)
    assert not GraphStore().directory.exists()


def test_a_function_of_others_takes_the_full_way(again, monkeypatch):
    def replaced(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        return x * 2

    again(net(), X)
    monkeypatch.setattr(F, "gelu", torch._dynamo.allow_in_graph(replaced))
    assert not again(net(), X)


def test_an_op_of_others_takes_the_full_way(again):
    library = torch.library.Library("recall_test", "DEF")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CompositeImplicitAutograd")

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.recall_test.thrice(x).exp()

    assert [again(function, X) for _ in range(2)] == [False, False]


def known(model: nn.Module) -> Callable[..., Any]:
    """Compiles a model with its graph in the cache."""
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(net(), backend="npu")(X)
        torch._dynamo.reset()
        fast = torch.compile(model, backend="npu")
        before = compile_statistics().compiled
        fast(X)
        assert compile_statistics().compiled == before
    return fast


@pytest.fixture
def _own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("_own_store")
def test_a_weight_that_changes_after_a_hit_is_seen():
    model = net()
    fast = known(model)
    with torch.no_grad():
        for _ in range(4):
            model[0].weight.mul_(1.5)
            torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_own_store")
def test_weights_that_are_replaced_after_a_hit_are_seen():
    model = net()
    fast = known(model)
    model.load_state_dict(net(1).state_dict())
    model[0].bias.data = torch.ones(16)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast(X + 1), model(X + 1), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_own_store")
def test_another_size_after_a_hit_is_compiled():
    fast = known(net())
    x = torch.ones(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net()(x), rtol=1e-4, atol=1e-5)


def damage_text(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


def damage_number(path: Path) -> None:
    content = json.loads(path.read_text())
    content["record"]["outputs"] = [3]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("damage", [damage_text, damage_number])
def test_a_damaged_record_is_not_used(again, damage, caplog):
    again(net(), X)
    (path,) = GraphStore().directory.iterdir()
    damage(path)
    assert not again(net(), X)
    assert "cannot be used" in caplog.text
    assert again(net(), X)


def test_a_record_without_its_program_is_not_used(again):
    again(net(), X)
    ProgramCache().clear()
    assert not again(net(), X)
    assert again(net(), X)


def test_a_cache_of_size_zero_keeps_no_graph(again, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_CACHE_SIZE_MB", "0")
    assert [again(net(), X) for _ in range(2)] == [False, False]
    assert not GraphStore().directory.exists()


def test_a_directory_that_cannot_be_written_costs_the_record_alone(again, caplog):
    GraphStore().directory.write_text("no directory")
    assert [again(net(), X) for _ in range(2)] == [False, False]
    assert "graph store: cannot write" in caplog.text


def test_the_store_keeps_the_newer_half(tmp_path):
    store = GraphStore(tmp_path, most=4)
    for index in range(5):
        store.write(str(index), {"number": index})
    assert store.read("4") == {"number": 4}
    assert len([*store.directory.iterdir()]) == 2
    store.clear()
    assert store.read("4") is None
