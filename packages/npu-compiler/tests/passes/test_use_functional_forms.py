"""Calls that write to an argument and have a converter: in programs, and in place on the host."""

from __future__ import annotations

import pytest
import torch

import npu_compiler
from npu_compiler.lowering.registry import _TABLE

DEVICES = ["cpu", "npu"]
ops = torch.ops.functional_pass_test
IN_PROGRAM = {"target": "openvino", "strict": True}
ON_HOST = {"strict": True}


def write_ring(cache, rows, start):
    """Rows go round: cache[(start + i) % len(cache)] = rows[i]; returns their sum."""
    cache.copy_(written(cache, rows, start)[1])
    return rows.sum(-1)


def written(cache, rows, start):
    at = (start + torch.arange(len(rows), device=rows.device)) % len(cache)
    return rows.sum(-1), cache.index_copy(0, at, rows)


@pytest.fixture(autouse=True)
def op():
    library = torch.library.Library("functional_pass_test", "FRAGMENT")
    library.define("write_ring(Tensor(a!) cache, Tensor rows, Tensor start) -> Tensor")
    library.impl("write_ring", write_ring, "CompositeExplicitAutograd")
    name = "functional_pass_test::write_ring"
    torch.library.register_fake(name, lambda c, rows, s: rows.new_empty(len(rows)), lib=library)
    present = set(_TABLE)

    @npu_compiler.register_fx_node_converter(ops.write_ring.default)
    def convert(ctx, cache, rows, start):
        return npu_compiler.custom_op(ctx, written, [cache, rows, start])

    yield
    for key in set(_TABLE) - present:
        del _TABLE[key]
    library._destroy()


def step(cache, rows, start):
    return ops.write_ring(cache, rows * 2, start) + cache.amax()


def given(device):
    cache = torch.linspace(-3, 2, 35).reshape(7, 5).to(device)
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(device)
    return cache, rows, torch.tensor(-2, device=device)


def both(function, options, *ours):
    """Results and written caches, compiled and eager."""
    theirs = [x.clone() for x in ours]
    with torch.no_grad():
        fast = torch.compile(function, backend="npu", fullgraph=True, options=options)
        return (fast(*ours), ours[0]), (function(*theirs), theirs[0])


def eager_calls(options, *inputs):
    with torch.no_grad():
        what = npu_compiler.explain(step, *inputs, options=options)
    return [(call.op, call.reason) for call in what.eager]


@pytest.mark.parametrize("device", DEVICES)
def test_program_holds_the_call_and_the_cache_is_written(device):
    inputs = given(device)
    address = inputs[0].data_ptr()
    torch.testing.assert_close(*both(step, IN_PROGRAM, *inputs))
    assert inputs[0].data_ptr() == address
    assert eager_calls(IN_PROGRAM, *given(device)) == []


@pytest.mark.parametrize("device", DEVICES)
def test_on_the_hosts_cores_the_ops_own_kernel_writes_in_place(device, monkeypatch, on_npu):
    monkeypatch.delenv("NPU_COMPILE_TARGET")
    torch.testing.assert_close(*both(step, ON_HOST, *given(device)))
    reason = "its own kernel on the host's cores is better there"
    left = [] if on_npu else [("functional_pass_test.write_ring.default", reason)]
    assert eager_calls(ON_HOST, *given(device)) == left


def test_former_content_read_before_and_after_stays_right():
    def function(cache, rows, start):
        before = cache * 3
        kept = cache.clone()
        first = ops.write_ring(cache, rows, start)
        second = ops.write_ring(cache, rows - 1, start + 4)
        return first, second, before, kept, cache + 1

    torch.testing.assert_close(*both(function, {"target": "openvino"}, *given("npu")))


@pytest.mark.parametrize("options", [IN_PROGRAM, ON_HOST], ids=["program", "host"])
def test_cache_that_is_a_part_of_a_larger_one_is_written_there_and_nowhere_else(
    options, monkeypatch
):
    monkeypatch.delenv("NPU_COMPILE_TARGET")

    def function(whole, rows, start):
        return step(whole[1], rows, start)

    cache, rows, start = given("npu")
    whole = torch.full((3, 7, 5), 9.0, device="npu")
    whole[1] = cache
    options = {key: value for key, value in options.items() if key != "strict"}
    torch.testing.assert_close(*both(function, options, whole, rows, start))
    assert whole[0].unique().tolist() == whole[2].unique().tolist() == [9.0]


def test_named_in_fallback_ops_it_stays_with_its_own_kernel():
    options = {"target": "openvino", "fallback_ops": ("functional_pass_test.write_ring.default",)}
    torch.testing.assert_close(*both(step, options, *given("npu")))
    assert len(eager_calls(options, *given("npu"))) == 1
