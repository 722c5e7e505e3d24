"""torch.use_deterministic_algorithms on npu."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: torch.empty(4, device="npu", dtype=dtype),
        lambda dtype: torch.empty_strided((2, 2), (2, 1), device="npu", dtype=dtype),
        lambda dtype: torch.empty_like(torch.ones(4, device="npu", dtype=dtype)),
        lambda dtype: torch.ones(1, device="npu", dtype=dtype).new_empty(4),
        lambda dtype: torch.empty(0, device="npu", dtype=dtype).resize_(4),
        lambda dtype: torch.npu.FloatTensor(4).to(dtype),
    ],
    ids=["empty", "empty_strided", "empty_like", "new_empty", "resize_", "FloatTensor"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_nobody_wrote_is_nan(make, dtype):
    assert make(dtype).isnan().all()


def test_integers_that_nobody_wrote_are_the_largest():
    assert torch.empty(2, device="npu", dtype=torch.int32).tolist() == [2**31 - 1] * 2


def test_filling_can_be_left_out(monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    kept = torch.full((1 << 16,), 7.0, device="npu")
    del kept
    assert not torch.empty(1 << 16, device="npu").isnan().all()


def test_sums_by_index_repeat_bit_by_bit():
    index = torch.randint(10, (20_000,), device="npu")
    values = torch.randn(20_000, device="npu")
    zeros = torch.zeros(10, device="npu")
    runs = {
        "index_add": lambda: zeros.index_add(0, index, values),
        "scatter_add": lambda: zeros.scatter_add(0, index, values),
        "index_put": lambda: zeros.index_put((index,), values, accumulate=True),
        "bincount": lambda: torch.bincount(index, values),
        "embedding": lambda: gradient_of_embedding(index, values),
        "cumsum": lambda: values.cumsum(0),
    }
    for name, run in runs.items():
        first = run()
        assert all(torch.equal(run(), first) for _ in range(4)), name


def gradient_of_embedding(index, values):
    weight = torch.zeros(10, 1, device="npu", requires_grad=True)
    (torch.nn.functional.embedding(index, weight)[:, 0] * values).sum().backward()
    return weight.grad


def test_training_repeats_bit_by_bit():
    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.2)
        ).to("npu")
        head = torch.nn.Linear(8 * 36, 2).to("npu")
        optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
        for _ in range(3):
            optimizer.zero_grad()
            head(model(torch.randn(4, 3, 8, 8, device="npu"))).square().mean().backward()
            optimizer.step()
        return head.weight.detach().clone()

    assert torch.equal(train(), train())


def test_what_has_no_deterministic_form_is_said_by_torch():
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.zeros(3, device="npu").put_(
            torch.tensor([0, 0], device="npu"), torch.ones(2, device="npu"), accumulate=False
        )


def test_warn_only_warns():
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="put_"):
        torch.zeros(3, device="npu").put_(
            torch.tensor([0], device="npu"), torch.ones(1, device="npu"), accumulate=False
        )
