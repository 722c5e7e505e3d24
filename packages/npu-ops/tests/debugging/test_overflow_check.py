"""Origins of NaN and infinity: the op that computed them, or unwritten memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from npu_ops.debugging import OpOverflowCheck
from npu_ops.errors import VerificationError

DEVICES = ["cpu", "npu"]
SIZE = 64


@pytest.fixture(autouse=True)
def garbage_is_nan() -> Iterator[None]:
    """torch itself fills unwritten memory with NaN, so that garbage is the same each time."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def empty(device: str) -> torch.Tensor:
    return torch.empty(SIZE, device=device)


def sources(tool: OpOverflowCheck) -> list[tuple[str, str]]:
    return [(str(row[2]).split("(")[0], str(row[6])) for row in tool.report().rows]


FACTORIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(SIZE, device=x.device),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(SIZE),
    "empty_strided": lambda x: torch.empty_strided((SIZE,), (1,), device=x.device),
    "new_empty_strided": lambda x: x.new_empty_strided((SIZE,), (1,)),
    "empty_permuted": lambda x: torch.empty_permuted((8, 8), (1, 0), device=x.device),
    "resize_": lambda x: x[:0].clone().resize_(SIZE),
    "resize_as_": lambda x: x[:4].clone().resize_as_(x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_a_factory_without_a_value_is_not_blamed(
    make: Callable[[torch.Tensor], torch.Tensor], device: str
) -> None:
    x = torch.ones(SIZE, device=device)
    with OpOverflowCheck() as tool:
        made = make(x)
        made.view(torch.int32)
        made[:3]
    assert bool(made.isnan().any())
    assert sources(tool) == []


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_an_initialisation_overwrites_is_sound(device: str) -> None:
    with OpOverflowCheck() as tool:
        for write in (
            lambda x: x.uniform_(),
            lambda x: x.copy_(torch.ones(SIZE)),
            lambda x: torch.add(torch.ones(SIZE, device=device), 1, out=x),
            lambda x: x.fill_(2).log_(),
        ):
            x = empty(device)
            write(x)
            (x * 2).sum()
    assert sources(tool) == []


def test_an_output_over_garbage_does_not_hide_the_origin() -> None:
    bad = torch.full((SIZE,), -1.0, device="npu")
    with OpOverflowCheck() as tool:
        torch.log(bad, out=empty("npu"))
    assert tool.origins == ["aten.log.out(float32[64], out=float32[64])"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_buffer_that_is_filled_in_part_is_judged_by_that_part(device: str) -> None:
    with OpOverflowCheck() as tool:
        cache = empty(device).view(8, 8)
        cache[:3] = 1
        cache.index_copy_(0, torch.tensor([5], device=device), torch.ones(1, 8, device=device))
        cache[torch.tensor([6], device=device)] = 2.0
        used = torch.cat([cache[:3], cache[5:7]])
        (used @ cache[:1].t()).sum()
    assert tool.passed
    assert sources(tool) == [
        ("aten.index_copy_.default", "unwritten memory"),
        ("aten.index_put_.default", "unwritten memory"),
    ]


def test_a_nan_that_is_computed_in_a_partly_written_buffer_has_its_origin() -> None:
    with OpOverflowCheck() as tool:
        cache = empty("npu").view(8, 8)
        cache[:3] = -1
        cache.log()
        cache[:3].sqrt()
    assert tool.origins == [
        "aten.log.default(float32[8,8])",
        "aten.sqrt.default(float32[3,8])",
    ]


def test_what_is_computed_of_garbage_is_told_as_that_and_not_judged() -> None:
    with OpOverflowCheck() as tool:
        buffer = empty("npu")
        buffer[:4] = 1
        doubled = buffer * 2
        doubled[:4].sum().item()
    assert ("aten.mul.Tensor", "unwritten memory") in sources(tool)
    assert tool.origins == []
    assert tool.passed
    assert "memory that nothing wrote is aten.mul" in tool.report().summary


def test_zero_times_garbage_is_a_failure() -> None:
    mask = torch.zeros(SIZE, device="npu")
    with OpOverflowCheck() as tool:
        _ = empty("npu") * mask
    assert not tool.passed
    assert sources(tool) == [("aten.mul.Tensor", "unwritten memory")]
    with OpOverflowCheck(is_fatal=True), pytest.raises(VerificationError, match="nothing wrote"):
        _ = empty("npu") * mask


def test_a_python_number_taken_from_garbage_is_a_failure() -> None:
    with OpOverflowCheck() as tool:
        empty("npu").mean().item()
    assert not tool.passed
    assert tool.unwritten[-1].startswith("aten._local_scalar_dense")


def test_a_write_through_numpy_is_a_write() -> None:
    with OpOverflowCheck() as tool:
        x = torch.empty(SIZE)
        x.numpy()[:] = -1
        x.log()
    assert tool.origins == ["aten.log.default(float32[64] cpu)"]


def test_a_write_by_an_op_that_is_not_looked_at_is_a_write() -> None:
    with OpOverflowCheck(["log"]) as tool:
        empty("npu").fill_(-1).log()
    assert tool.origins == ["aten.log.default(float32[64])"]


def test_memory_that_was_freed_is_forgotten() -> None:
    with OpOverflowCheck() as tool:
        for _ in range(100):
            torch.empty(SIZE, device="npu")
        torch.full((SIZE,), -1.0, device="npu").log()
    assert tool.origins == ["aten.log.default(float32[64])"]
    assert len(tool._memory._regions) <= 1


def test_a_tensor_that_grew_is_unwritten_behind_its_old_end() -> None:
    with OpOverflowCheck() as tool:
        x = torch.full((4,), -1.0, device="npu").resize_(SIZE)
        x[:4].log()
        x[4:].log()
    assert tool.origins == ["aten.log.default(float32[4])"]


def test_infinity_that_the_program_asks_for_is_no_failure() -> None:
    scores = torch.ones(4, 4, device="npu")
    with OpOverflowCheck() as tool:
        mask = torch.full((4, 4), -math.inf, device="npu").triu(1)
        (scores + mask).softmax(-1).sum()
        scores.masked_fill(mask.isinf(), -math.inf).logsumexp(-1)
    assert tool.passed
    assert {source for _, source in sources(tool)} == {"passed on"}


def test_a_row_that_is_masked_as_a_whole_is_the_origin_of_its_nan() -> None:
    with OpOverflowCheck() as tool:
        torch.full((2, 4), -math.inf, device="npu").softmax(-1)
    assert [name.split("(")[0] for name in tool.origins] == ["aten._softmax.default"]


def test_a_nan_of_the_data_is_a_failure_without_an_origin() -> None:
    data = torch.tensor([1.0, math.nan], device="npu")
    with OpOverflowCheck() as tool:
        _ = data * 2
    assert tool.origins == []
    assert not tool.passed


def test_a_loss_in_log_space_is_no_overflow() -> None:
    scores = torch.zeros(6, 1, 3, device="npu").log_softmax(2)
    with OpOverflowCheck() as tool:
        torch.ops.aten._ctc_loss(scores, torch.tensor([[1, 2]], device="npu"), [6], [2])
    assert tool.passed


def test_checked_programs_compute_what_unchecked_ones_do() -> None:
    def program() -> torch.Tensor:
        torch.npu.manual_seed(4)
        buffer = torch.empty(4, 4, device="npu").normal_()
        buffer[:2] += torch.rand(4, device="npu")
        return torch.nn.functional.dropout(buffer, 0.5)

    expected = program()
    with OpOverflowCheck():
        got = program()
    assert torch.equal(got, expected)
