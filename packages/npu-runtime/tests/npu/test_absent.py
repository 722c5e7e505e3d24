"""Public names of torch.cuda and of torch_npu are names of torch.npu, or absent with a reason."""

import importlib
import types
from pathlib import Path

import pytest
import torch

from npu_runtime.npu.absent import ABSENT

# Modules below torch.cuda with public names that must also be here.
SUBMODULES = ("amp", "graphs", "memory", "nvtx", "random", "streams")
# The one question that torch.cuda.amp asks about a CUDA build.
ABSENT_BELOW = frozenset({"amp_definitely_not_available"})

# torch_npu.npu.__all__, of its master branch in November 2026.
NAMES_OF_TORCH_NPU = (Path(__file__).parent / "torch_npu_names.txt").read_text().split()


def is_cudas(name: str) -> bool:
    value = getattr(torch.cuda, name)
    home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return home.startswith("torch.cuda")


def names_of_cuda() -> list[str]:
    listed = set(torch.cuda.__all__)
    others = {name for name in vars(torch.cuda) if not name.startswith("_")} - listed
    made_by_cuda = {
        name
        for name in others
        if isinstance(getattr(torch.cuda, name), types.ModuleType | types.FunctionType | type)
        and is_cudas(name)
    }
    return sorted(listed | made_by_cuda | {"OutOfMemoryError", "AcceleratorError"})


def below() -> list[str]:
    pairs = []
    for module in SUBMODULES:
        theirs = importlib.import_module(f"torch.cuda.{module}")
        pairs += [f"{module}.{name}" for name in getattr(theirs, "__all__", ())]
    return sorted(pairs)


@pytest.mark.parametrize("name", names_of_cuda())
def test_a_name_of_cuda_is_here_or_has_a_reason(name):
    assert (name in ABSENT) != hasattr(torch.npu, name)


@pytest.mark.parametrize("name", NAMES_OF_TORCH_NPU)
def test_a_name_of_torch_npu_is_here_or_has_a_reason(name):
    assert (name in ABSENT) != hasattr(torch.npu, name)


@pytest.mark.parametrize("name", below())
def test_a_name_below_cuda_is_here_or_has_a_reason(name):
    module, _, attribute = name.partition(".")
    if attribute in ABSENT.keys() | ABSENT_BELOW:
        return
    assert hasattr(importlib.import_module(f"torch.npu.{module}"), attribute)


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_asking_for_an_absent_name_gives_the_reason(name):
    with pytest.raises(AttributeError) as caught:
        getattr(torch.npu, name)
    assert str(caught.value) == f"torch.npu has no {name}: {ABSENT[name]}."


def test_only_names_of_theirs_are_listed():
    assert {*names_of_cuda(), *NAMES_OF_TORCH_NPU} >= ABSENT.keys() - {"green_contexts"}


def test_any_other_name_is_missing_as_from_any_module():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = torch.npu.nonsense


@pytest.mark.parametrize("name", sorted(torch.npu.__all__))
def test_every_listed_name_is_there(name):
    assert getattr(torch.npu, name) is not None


@pytest.mark.parametrize("name", SUBMODULES)
def test_modules_can_be_imported_by_either_name(name):
    ours = importlib.import_module(f"npu_runtime.npu.{name}")
    assert importlib.import_module(f"torch.npu.{name}") is ours is getattr(torch.npu, name)
