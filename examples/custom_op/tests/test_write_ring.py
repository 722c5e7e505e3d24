"""The operator `write_ring`, in C++ and in Python alone, against plain torch."""

import pytest
import torch

import add_custom
import npu_compiler
import npu_ops
from add_custom import python_alone

DEVICES = ["cpu", "npu"]
OPS = {"c++": add_custom.write_ring, "python": python_alone.write_ring}
IN_PROGRAM = {"target": "openvino", "strict": True}


@pytest.fixture(params=OPS)
def write_ring(request):
    return OPS[request.param]


def reference(cache: torch.Tensor, rows: torch.Tensor, start: int) -> torch.Tensor:
    """The cache's new content, slot by slot."""
    cache, rows = cache.cpu().clone(), rows.cpu()
    for i in range(len(rows)):
        cache[(start + i) % len(cache)] = rows[i]
    return cache


def given(device, dtype=torch.float32):
    cache = torch.linspace(-4, 3, 35).reshape(7, 5).to(device, dtype)
    rows = torch.tensor([[float("nan"), -1, 2, 0, 7], [1, 2, 3, 4, 5], [9, 8, 7, 6, -5]])
    return cache, rows.to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", [0, 5, -2, 7, 2**62, -(2**62)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rows_go_round_and_nothing_else_is_written(write_ring, device, start, dtype):
    cache, rows = given(device, torch.float32)
    cache, rows = cache.to(dtype), rows.nan_to_num().to(dtype)
    whole = torch.full((3, 7, 5), 42, device=device).to(dtype)
    whole[1] = cache
    write_ring(whole[1], rows, torch.tensor(start, device=device))
    assert torch.equal(whole[1].cpu(), reference(cache, rows, start))
    assert (whole[0] == 42).all()
    assert (whole[2] == 42).all()


def test_the_kernel_runs_on_npu_memory_and_is_no_fallback():
    npu_ops.reset_fallback_report()
    add_custom.write_ring(*given("npu"), torch.tensor(1, device="npu"))
    assert "add_custom::write_ring" not in npu_ops.fallback_report()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [IN_PROGRAM, {"strict": True}], ids=["program", "default"])
def test_compiled_the_cache_is_written_as_eagerly(write_ring, device, options):
    def function(cache, rows, start):
        before = cache.sum(0)
        write_ring(cache, rows * 2, start)
        return before, cache.amax(1)

    ours, rows = given(device)
    theirs, start = ours.clone(), torch.tensor(-2, device=device)
    address = ours.data_ptr()
    with torch.no_grad():
        fast = torch.compile(function, backend="npu", fullgraph=True, options=options)
        expected = function(theirs, rows, start)
        torch.testing.assert_close(fast(ours, rows, start), expected, equal_nan=True)
    assert ours.data_ptr() == address
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_compiled_for_a_device_it_is_in_one_program(write_ring):
    def function(cache, rows, start):
        write_ring(cache, torch.relu(rows), start)
        return cache * 2

    with torch.no_grad():
        start = torch.tensor(6, device="npu")
        what = npu_compiler.explain(function, *given("npu"), start, options=IN_PROGRAM)
    assert (what.program_count, what.eager) == (1, ()), str(what)


def test_schema_and_fake_agree_with_the_kernel():
    for op in (torch.ops.add_custom.write_ring, torch.ops.add_custom.write_ring_in_python):
        assert op.default._schema.arguments[0].alias_info.is_write
        torch.library.opcheck(op.default, (torch.ones(4, 3), torch.rand(2, 3), torch.tensor(3)))


def test_what_does_not_fit_is_refused_and_nothing_is_written():
    cache, rows = given("npu")
    kept, start = cache.clone(), torch.tensor(0, device="npu")
    for arguments, text in (
        ((cache.t(), rows, start), "cache must be"),
        ((cache[0], rows, start), "cache must be"),
        ((cache, rows[:, 1:], start), "rows must be"),
        ((cache, torch.cat([rows] * 3), start), "rows must be"),
        ((cache, rows.half(), start), "rows must be"),
        ((cache, rows, start.int()), "start must be one int64"),
        ((cache, rows, start[None]), "start must be one int64"),
        ((cache, rows, start.cpu()), "on the device of cache"),
        ((cache, cache[1:3], start), "must not share memory"),
    ):
        with pytest.raises(ValueError, match=text):
            add_custom.write_ring(*arguments)
    assert torch.equal(cache, kept)


def test_more_rows_than_slots_are_refused_in_python_too():
    cache, rows = given("cpu")
    with pytest.raises(ValueError, match="must fit into cache, 2 slots, got 3 rows"):
        python_alone.write_ring(cache[:2], rows, torch.tensor(0))
