"""Model families, small and with random weights: compiled equals eager, in one program.

The architectures are those of npu_compiler.suite, of which this is a sample from each family;
`nox -s models` runs all of them.
"""

from __future__ import annotations

import pytest
import torch

from npu_compiler.suite import find, make
from npu_compiler.suite.families.architecture import VOCABULARY
from npu_compiler.suite.measurement import tensors_of

SAMPLE = (
    "llama", "gemma2", "phi3", "gpt2", "bert", "modernbert", "resnet", "swin", "whisper", "clip",
    "t5", "mixtral", "lfm2",
)  # fmt: skip


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    return make(find(name))


@pytest.mark.parametrize("name", SAMPLE)
def test_family_is_one_program_and_equals_eager(compiled, close, name):
    # Devices alternate, so that both paths meet many families in half the time.
    device = ("cpu", "npu")[SAMPLE.index(name) % 2]
    model, inputs = build(name)
    with torch.no_grad():
        expected = tensors_of(model(**inputs))
        model = model.to(device)
        fast = compiled(model)
        placed = {key: value.to(device) for key, value in inputs.items()}
        first = tensors_of(fast(**placed))
        second = tensors_of(fast(**placed))
    assert fast.programs == 1
    assert fast.eager_ops == []
    assert {tensor.device.type for tensor in first} == {device}
    close(first, expected)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
        assert a.data_ptr() != b.data_ptr()


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_half_precision_model_follows_float32(compiled, name):
    model, inputs = build(name)
    with torch.no_grad():
        expected = tensors_of(model(**inputs))[0]
        half = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
        fast = compiled(model.bfloat16())
        result = tensors_of(fast(**half))[0]
        eager = tensors_of(model(**half))[0]
    assert fast.programs == 1
    assert fast.records[0].programs[0].precision == "bfloat16"
    assert result.dtype is torch.bfloat16
    # Not further from float32 than eager bfloat16 is, with some room for other roundings.
    error = (result.float() - expected).norm() / expected.norm()
    own = (eager.float() - expected).norm() / expected.norm()
    assert error <= 1.5 * own + 1e-3


def _loss(output: torch.Tensor) -> torch.Tensor:
    # Not the sum of squares: behind a last norm that is constant, and gradients would be noise.
    weights = torch.linspace(-1, 2, output.numel(), device=output.device)
    return (output.flatten() * weights).sum()


@pytest.mark.parametrize(
    "name, device",
    [("llama", "npu"), ("resnet", "cpu"), pytest.param("bert", "cpu", marks=pytest.mark.long)],
)
def test_training_step_equals_eager(compiled, name, device):
    model, inputs = build(name)
    _loss(tensors_of(model(**inputs))[0]).backward()
    expected = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model = model.to(device)
    fast = compiled(model)
    placed = {key: value.to(device) for key, value in inputs.items()}
    _loss(tensors_of(fast(**placed))[0]).backward()
    found = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    # AOTAutograd gives zeros where eager gives none.
    assert all(found[key].abs().max() == 0 for key in found.keys() - expected.keys())
    assert {record.kind for record in fast.records} == {"forward", "backward"}
    assert fast.programs >= 2
    # Some gradients are zero but for rounding (a key's bias): the largest one gives the scale.
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for key, reference in expected.items():
        scale = max(float(reference.abs().max()), 1e-3 * largest)
        assert float((found[key].cpu() - reference).abs().max()) <= 1e-4 * scale, key


def test_lengths_that_change_compile_a_dynamic_program_once(compiled, close):
    model, _ = build("bert")
    fast = compiled(model)
    with torch.no_grad():
        for length in (5, 9, 3):
            ids = torch.randint(3, VOCABULARY, (2, length))
            close(fast(input_ids=ids)[0], model(input_ids=ids)[0])
    # One for the first length, one for all others.
    assert len(fast.records) == 2
    assert fast.eager_ops == []
