import pytest
import torch

from npu_ops.conformance.comparison import PROGRAM_TOLERANCES, difference


def apart(dtype: torch.dtype, by: float) -> tuple[torch.Tensor, torch.Tensor]:
    expected = torch.linspace(-4, 4, 33, dtype=torch.float64)
    return (expected + by).to(dtype), expected.to(dtype)


def test_host_kernels_have_torchs_tolerances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_OPS_VARIANT", raising=False)
    assert difference(*apart(torch.float32, 1e-7)) is None
    assert difference(*apart(torch.float32, 5e-5)) is not None


@pytest.mark.parametrize("dtype", PROGRAM_TOLERANCES, ids=str)
def test_forced_programs_may_round_and_no_more(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setenv("NPU_OPS_VARIANT", "program")
    most = PROGRAM_TOLERANCES[dtype] * 4
    assert difference(*apart(dtype, 0.5 * most)) is None
    assert difference(*apart(dtype, 2 * most)) is not None


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
    assert difference(got, expected) is not None
