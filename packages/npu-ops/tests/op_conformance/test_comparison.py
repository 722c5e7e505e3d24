import pytest
import torch

from npu_ops.op_conformance.comparison import difference
from npu_ops.tolerances import DEFAULT, NAMED, tolerance_of

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def apart(dtype: torch.dtype, by: float) -> tuple[torch.Tensor, torch.Tensor]:
    expected = torch.linspace(-4, 4, 33, dtype=torch.float64)
    return (expected + by).to(dtype), expected.to(dtype)


def test_host_kernels_have_torchs_tolerances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_OPS_VARIANT", raising=False)
    assert difference(*apart(torch.float32, 1e-7)) is None
    assert difference(*apart(torch.float32, 5e-5)) is not None


@pytest.mark.parametrize("subject", ["mm", "nn_functional_multi_head_attention_forward"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_forced_programs_may_round_as_their_op_may_and_no_more(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, subject: str
) -> None:
    monkeypatch.setenv("NPU_OPS_VARIANT", "program")
    share = tolerance_of(subject).of(dtype)
    expected = torch.tensor([0.0, 4.0], dtype=dtype)
    inside, outside = (torch.tensor([4 * share * by, 4.0], dtype=dtype) for by in (0.5, 2))
    assert difference(inside, expected, subject) is None
    assert difference(outside, expected, subject) is not None


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_forced_programs_of_exact_ops_give_equal_values(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    expected = torch.tensor([1.0, float("nan")], dtype=dtype)
    next_one = expected * (1 + torch.finfo(dtype).eps)
    monkeypatch.setenv("NPU_OPS_VARIANT", "host")
    assert difference(next_one, expected, "nn_functional_relu") is None
    monkeypatch.setenv("NPU_OPS_VARIANT", "program")
    assert difference(next_one, expected, "nn_functional_relu") is not None
    assert difference(expected.clone(), expected, "nn_functional_relu") is None


def test_a_named_op_says_why_it_differs_from_the_default() -> None:
    for tolerance in NAMED.values():
        assert tolerance != DEFAULT
        assert tolerance.reason


def test_what_no_program_computes_in_has_no_tolerance() -> None:
    assert DEFAULT.of(torch.float64) == DEFAULT.of(torch.int64) == 0


@pytest.mark.parametrize(
    "got, expected",
    [
        (torch.ones(3), torch.ones(4)),
        (torch.ones(3), torch.ones(3, dtype=torch.bfloat16)),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        ((torch.ones(3),), (torch.ones(3), torch.ones(3))),
    ],
    ids=["shape", "dtype", "nan", "integers", "structure"],
)
def test_what_is_no_rounding_is_never_forgiven(
    monkeypatch: pytest.MonkeyPatch, got: object, expected: object
) -> None:
    monkeypatch.setenv("NPU_OPS_VARIANT", "program")
    assert difference(got, expected, "mm") is not None
