import pytest
import torch

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_of_every_dtype(dtype):
    made = torch.zeros(2, 3, dtype=dtype, device="npu")
    assert made.device == torch.device("npu:0")
    assert torch.equal(made.cpu(), torch.zeros(2, 3, dtype=dtype))


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.ones(3, device=device),
        lambda device: torch.full((2, 2), 7, device=device),
        lambda device: torch.arange(2, 9, 3, device=device),
        lambda device: torch.linspace(0, 1, 5, device=device),
        lambda device: torch.eye(3, device=device),
        lambda device: torch.kaiser_window(5, device=device),
        lambda device: torch.kaiser_window(5, False, beta=3.0, device=device),
        lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
        lambda device: torch.as_tensor([1.5, 2.5], device=device),
        lambda device: torch.tril_indices(3, 3, device=device),
        lambda device: torch.hann_window(8, device=device),
    ],
    ids=[
        "ones",
        "full",
        "arange",
        "linspace",
        "eye",
        "kaiser",
        "kaiser_beta",
        "tensor",
        "as_tensor",
        "tril_indices",
        "window",
    ],
)
def test_factory_gives_the_cpu_values(make):
    made = make("npu")
    assert made.device.type == "npu"
    assert torch.equal(made.cpu(), make("cpu"))


def test_empty_keeps_the_memory_format():
    made = torch.empty(2, 3, 4, 5, device="npu", memory_format=torch.channels_last)
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_empty_strided_has_the_strides_asked_for():
    made = torch.empty_strided((2, 3), (1, 4), dtype=torch.int16, device="npu")
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 4), torch.int16)
    assert made.untyped_storage().nbytes() == (1 + 2 * 4 + 1) * 2


def test_like_and_new_factories_stay_on_the_device():
    base = torch.zeros(2, 2, device="npu")
    made = [
        torch.ones_like(base),
        base.new_zeros(3),
        base.new_full((2,), 5.0),
        base.new_tensor([1]),
    ]
    assert [tensor.device.type for tensor in made] == ["npu"] * 4


def test_default_dtype_is_followed():
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.empty(1, device="npu").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_default_device_context():
    with torch.device("npu"):
        assert torch.zeros(2).device.type == "npu"


def test_deterministic_mode_fills_empty_memory(monkeypatch):
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4, device="npu").isnan().all()
        assert (
            torch.empty(4, dtype=torch.int32, device="npu") == torch.iinfo(torch.int32).max
        ).all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_pinned_memory_is_refused():
    with pytest.raises(RuntimeError, match=r"only dense CPU tensors can be pinned.*\[pin-memory\]"):
        torch.empty(2, device="npu", pin_memory=True)


def test_negative_size_is_refused():
    with pytest.raises(RuntimeError, match="negative dimension -1"):
        torch.empty(-1, device="npu")


def test_a_second_device_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeError, match="device-index"):
        torch.empty(2, device="npu:63")
