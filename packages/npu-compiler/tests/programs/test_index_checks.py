"""Indices out of range raise where torch raises, however a program came to be, and harm nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import npu_compiler
from npu_compiler.graph_builder import GraphBuilder
from npu_runtime import IndexRangeError

X = torch.arange(60.0).view(5, 4, 3) / 7
RIGHT = torch.tensor([[0, 1, 2], [2, 1, 0]])
HUGE = 1 << 40

# Function of x (5, 4, 3) and indices (2, 3), the indexed size, and whether negative
# indices count from its end.
OPS = {
    "index": (lambda x, i: x[i] * 2, 5, True),
    "index_two_dims": (lambda x, i: x[i, i] * 2, 4, True),
    "index_last_dim": (lambda x, i: x[:, :, i] * 2, 3, True),
    "embedding": (lambda x, i: F.embedding(i, x.view(5, 12)) * 2, 5, False),
    "index_select": (lambda x, i: x.index_select(1, i[0]) * 2, 4, False),
    "gather": (lambda x, i: x.gather(0, i[:, :1, None].expand(2, 4, 3)) * 2, 5, False),
    "take": (lambda x, i: x.take(i) * 2, 60, True),
    "scatter": (lambda x, i: (x * 2).scatter(0, i[None], 7.0), 5, False),
    "scatter_src": (lambda x, i: (x * 2).scatter(0, i[None], x[:1, :2] + 1), 5, False),
    "scatter_add": (lambda x, i: (x * 2).scatter_add(0, i[None], x[:1, :2]) * 2, 5, False),
    "scatter_reduce": (
        lambda x, i: (x * 2).scatter_reduce(0, i[None], x[:1, :2], "amax") * 2,
        5,
        False,
    ),
    "index_put": (lambda x, i: (x * 2).index_put((i[0],), x[:3] + 1), 5, True),
    "index_add": (lambda x, i: (x * 2).index_add(0, i[0], x[:3]) * 2, 5, False),
    "index_copy": (lambda x, i: (x * 2).index_copy(0, i[0], x[:3] + 1), 5, False),
    "index_fill": (lambda x, i: (x * 2).index_fill(0, i[0], 3.0), 5, True),
    "nll_loss": (lambda x, i: F.nll_loss((x * 2).view(5, 12)[:3].log_softmax(1), i[0]), 12, False),
    "cross_entropy": (lambda x, i: F.cross_entropy((x * 2).view(5, 12)[:3], i[0]), 12, False),
    "embedding_bag": (lambda x, i: F.embedding_bag(i, x.view(5, 12)) * 2, 5, False),
    "one_hot": (lambda x, i: torch.ops.aten.one_hot(i, 5) * x.sum(), 5, False),
}
# Ops for which torch also accepts int32.
BOTH_TYPES = ("index_two_dims", "embedding", "gather", "index_put")

# Ops with a converter: the program itself reports. torch's host kernels raise for the others.
IN_PROGRAM = set(OPS) - {
    "take", "scatter_add", "scatter_reduce", "index_add", "index_fill", "embedding_bag", "one_hot",
}  # fmt: skip
CASES = [(name, torch.int64) for name in OPS] + [(name, torch.int32) for name in BOTH_TYPES]


def indices(value: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Right ones, but for the first."""
    made = RIGHT.to(dtype).clone()
    made[0, 0] = value
    return made


def wrong_values(name: str, dtype: torch.dtype = torch.int64) -> list[int]:
    _, size, wraps = OPS[name]
    values = [size, -size - 1] if wraps else [size, -size - 1, -1]
    return [*values, HUGE] if dtype is torch.int64 else values


@pytest.mark.parametrize("name, dtype", CASES, ids=[f"{name}-{dtype}" for name, dtype in CASES])
def test_an_index_out_of_range_raises_and_others_give_torchs_results(compiled, close, name, dtype):
    function, size, wraps = OPS[name]
    fast = compiled(function)
    close(fast(X, indices(1, dtype)), function(X, indices(1, dtype)), 2e-5)
    for value in wrong_values(name, dtype):
        with pytest.raises((IndexError, RuntimeError)):
            function(X, indices(value, dtype))
        kind = IndexRangeError if name in IN_PROGRAM else (IndexError, RuntimeError)
        with pytest.raises(kind):
            fast(X, indices(value, dtype))
    if wraps:
        close(fast(X, indices(-size, dtype)), function(X, indices(-size, dtype)), 2e-5)
    close(fast(X, RIGHT.to(dtype)), function(X, RIGHT.to(dtype)), 2e-5)


@pytest.mark.parametrize("name", ["index_two_dims", "embedding", "index_put"])
def test_the_first_call_raises_too_and_the_next_ones_are_right(compiled, close, name):
    function, _, _ = OPS[name]
    fast = compiled(function)
    for value in wrong_values(name):
        with pytest.raises(IndexRangeError):
            fast(X, indices(value))
    close(fast(X, RIGHT), function(X, RIGHT), 2e-5)


def test_the_error_names_program_op_line_and_range(compiled):
    with pytest.raises(IndexRangeError) as failure:
        compiled(OPS["embedding"][0])(X, indices(7))
    text = str(failure.value)
    assert "an index of aten.embedding.default (" in text
    assert "test_index_checks.py:" in text
    assert "must be from 0 to 4, got 7." in text
    assert failure.value.code == "index-range"


@pytest.mark.parametrize("name", ["index", "embedding", "index_select", "index_two_dims"])
def test_sizes_that_vary_are_looked_at_in_each_call(compiled, close, name):
    function, _, _ = OPS[name]
    fast = compiled(function, dynamic=True)
    for rows in (5, 9, 7):
        x = torch.randn(rows, rows - 1 if name != "embedding" else 4, 3)
        if name == "embedding":
            x = torch.randn(5, 12)
        close(fast(x, RIGHT), function(x, RIGHT), 2e-5)
        size = {"index": rows, "embedding": 5}.get(name, rows - 1)
        for value in (size, -size - 1, HUGE):
            with pytest.raises(IndexRangeError):
                fast(x, indices(value))


def test_a_computed_index_is_told_by_the_program(compiled, close):
    def function(x, i):
        return x[i * 2 - 1, i - 2] * 2

    fast = compiled(function)
    close(fast(X, RIGHT), function(X, RIGHT), 2e-5)
    for value in (3, -3, HUGE, 1 << 30):
        with pytest.raises(IndexRangeError):
            fast(X, indices(value))
    close(fast(X, RIGHT), function(X, RIGHT), 2e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_a_part_of_an_input_is_looked_at_alone(compiled, close, size):
    table = torch.randn(4, 8)

    def function(i):
        return F.embedding(i[:, :size], table) * 2

    ids = torch.tensor([[0, 1, 2, 99], [2, 1, 0, -100]])
    close(compiled(function)(ids), function(ids), 2e-5)


def test_ignored_targets_are_no_indices(compiled, close):
    def function(x, i):
        return F.cross_entropy(x[:3, :, 0] * 2, i, ignore_index=-100)

    fast = compiled(function)
    for target in (torch.tensor([0, -100, 3]), torch.tensor([-100, 1, -100])):
        close(fast(X, target), function(X, target), 2e-5)
    with pytest.raises(IndexRangeError):
        fast(X, torch.tensor([0, -100, 4]))


PROVED = {
    "constant": lambda x, i: x[torch.tensor([0, -5])] * 2,
    "positions": lambda x, i: F.embedding(torch.arange(4), x.view(5, 12)) * 2,
    "clamped": lambda x, i: x[i.clamp(0, 4)] * 2,
    "remainder": lambda x, i: x[i % 5, i % 4] * 2,
    "comparison": lambda x, i: x[(i > 1).long()] * 2,
    "positions of a mask": lambda x, i: F.embedding(((i != 1).long().cumsum(1)), x.view(5, 12)) * 2,
    "argmax": lambda x, i: x[:, x[0, :, 0].argmax(0)] * 2,
    "topk": lambda x, i: x[:, :, 0].gather(1, (-x[:, :, 0]).topk(2).indices) * 2,
    "sort": lambda x, i: x[:, :, 0].gather(1, (-x[:, :, 0]).sort(1).indices) * 2,
}


def test_an_index_that_is_proved_costs_nothing(compiled, close, monkeypatch):
    def proved(x, i):
        return [function(x, i) for function in PROVED.values()]

    seen = []
    monkeypatch.setattr("npu_runtime.Program.check_indices", lambda _, checks: seen.extend(checks))
    close(compiled(proved)(X, RIGHT), proved(X, RIGHT), 2e-5)
    # Inputs of 64 bits that are computed with must fit the device's 32 bits all the same.
    assert not [check for check in seen if "from which" not in check.what]


def test_checks_can_be_left_out(compiled):
    fast = compiled(OPS["embedding"][0], options={"check_indices": False, "verify": "off"})
    assert torch.equal(fast(X, indices(7))[0, 0], torch.zeros(12))
    with pytest.raises(IndexRangeError):
        compiled(OPS["embedding"][0], options={"check_indices": True})(X, indices(7))


def test_training_looks_at_indices(compiled, close):
    def loss(table, head, i):
        return F.cross_entropy(F.embedding(i, table) @ head, i)

    fast = compiled(loss)
    table, head = torch.randn(6, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    fast(table, head, RIGHT[0]).backward()
    expected = torch.autograd.grad(loss(table, head, RIGHT[0]), [table, head])
    close(table.grad, expected[0], 2e-5)
    for value in (6, -1, HUGE):
        with pytest.raises(IndexRangeError):
            fast(table, head, indices(value)[0])
    close(fast(table, head, RIGHT[0]), loss(table, head, RIGHT[0]), 2e-5)


def test_tensors_on_npu_are_looked_at(compiled, close):
    function = OPS["index"][0]
    fast = compiled(function)
    x = X.to("npu")
    for value in wrong_values("index"):
        with pytest.raises((IndexRangeError, RuntimeError), match="index-range"):
            fast(x, indices(value).to("npu")).cpu()
    close(fast(x, RIGHT.to("npu")), function(X, RIGHT), 2e-5)


def test_a_graph_built_by_hand_looks_at_indices(close):
    graph = GraphBuilder()
    table = graph.parameter([5, 12])
    index = graph.parameter([2, 3], dtype=torch.int64)
    graph.compile(F.embedding(index, table) * 2)
    close(graph.run(X.view(5, 12), RIGHT), OPS["embedding"][0](X, RIGHT), 2e-5)
    with pytest.raises(IndexRangeError):
        graph.run(X.view(5, 12), indices(5))


BEHIND = """
import sys, torch, npu_runtime
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)).eval()
ids = torch.arange(6)
with torch.no_grad():
    fast = torch.compile(model, backend="npu")
    for wrong in (50, -1, 1 << 40):
        try:
            fast(torch.cat([ids[:5], torch.tensor([wrong])]))
        except npu_runtime.IndexRangeError as error:
            assert f"got {wrong}" in str(error), error
        else:
            raise SystemExit("no error")
    assert torch.allclose(fast(ids), model(ids), atol=1e-5)
from npu_compiler.graph_compiler.records import compile_statistics
print(compile_statistics().from_cache)
"""


def test_a_later_process_looks_at_indices(tmp_path, run_python):
    environment = {**os.environ, "NPU_COMPILE_CACHE_DIR": str(tmp_path)}
    found = [run_python([sys.executable, "-c", BEHIND], env=environment) for _ in range(2)]
    assert [done.returncode for done in found] == [0, 0], found[-1].stderr + found[0].stderr
    assert [done.stdout.split()[-1] for done in found] == ["0", "1"]


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)

    def forward(self, i: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self.table(i) + self.table.weight[shift + 1]


WITHOUT_TORCH = """
import sys
import numpy as np, npu_compiler
from npu_compiler.errors import IndexRangeError
model = npu_compiler.load(sys.argv[1])
ids = np.arange(6)
for i, shift in ((50, 0), (-1, 0), (1 << 40, 0), (0, 49), (0, -52)):
    wrong = np.array([*range(5), i]), np.array([*range(5), shift])
    try:
        model(*wrong)
    except IndexRangeError as error:
        assert error.code == "index-range"
        assert isinstance(error, IndexError)
    else:
        raise SystemExit(f"no error for {i}, {shift}")
np.save(sys.argv[2], model(ids, ids))
assert "torch" not in sys.modules
"""


def test_an_exported_model_looks_at_indices_with_torch_and_without(tmp_path, close, without_torch):
    model, ids = Lookup().eval(), torch.arange(6)
    folder = npu_compiler.export(model, (ids, ids.clone()), tmp_path / "lookup")
    expected = model(ids, ids)
    loaded = npu_compiler.load(folder)
    close(loaded(ids, ids), expected, 2e-5)
    for first, second in ((50, 0), (-1, 0), (HUGE, 0), (0, 49), (0, -52)):
        with pytest.raises(IndexRangeError):
            loaded(torch.tensor([*range(5), first]), torch.tensor([*range(5), second]))
    close(loaded(ids, ids), expected, 2e-5)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder), str(tmp_path / "result.npy")],
        env=without_torch,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    close(torch.from_numpy(np.load(tmp_path / "result.npy")), expected, 2e-5)


def test_an_export_may_leave_checks_out(tmp_path):
    ids = torch.arange(6)
    folder = npu_compiler.export(Lookup(), (ids, ids.clone()), tmp_path / "f", check_indices=False)
    assert npu_compiler.load(folder).manifest.index_checks == ()


def test_an_index_beyond_the_true_size_of_a_bucket_raises(compiled, close):
    def function(x, i):
        return x[i] * 2

    x = torch.randn(10, 4)
    torch._dynamo.mark_dynamic(x, 0)
    fast = compiled(function, options={"buckets": "powers of two"})
    for last in (9, -10):
        close(fast(x, torch.tensor([0, last])), function(x, torch.tensor([0, last])), 2e-5)
    for wrong in (10, 15, 16, -11):
        with pytest.raises(IndexRangeError):
            fast(x, torch.tensor([0, wrong]))
