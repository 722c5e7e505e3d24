"""Answers by who asks, and npu as a key of max_memory."""

import sys
import types

import pytest
import torch

from npu_runtime.config import RuntimeConfig
from npu_runtime.library_patches import ascend_calls, default_device
from npu_runtime.library_patches.hugging_face import answer_in, is_npu_available, with_indices

IMPORTS_TORCH_NPU = """
if is_npu_available():
    import torch_npu

def forward(x):
    if is_npu_available():
        return torch_npu.npu_geglu(x)
    return "the way of other devices"

def is_there():
    return is_npu_available()
"""


@pytest.fixture(autouse=True)
def asked_for(monkeypatch):
    monkeypatch.setattr(default_device, "config", RuntimeConfig(auto=True))
    monkeypatch.setattr(default_device, "_said", {True})


def ran(name, source):
    module = types.ModuleType(name)
    module.is_npu_available = is_npu_available
    exec(source, vars(module))
    return module


def test_a_program_is_told_of_npu():
    assert is_npu_available()
    assert is_npu_available(check_device=True)
    assert ran("users_own", "device = 'npu' if is_npu_available() else 'cpu'").device == "npu"


def test_code_that_calls_torch_npu_goes_the_way_of_other_devices():
    module = ran("a_library.layers", IMPORTS_TORCH_NPU)
    assert not hasattr(module, "torch_npu")
    assert module.forward(1) == "the way of other devices"
    assert module.is_there()


@pytest.mark.parametrize("library", ["diffusers", "trl"])
def test_modules_known_to_call_torch_npu_all_the_same_get_our_functions(library):
    module = ran(f"{library}.layers", IMPORTS_TORCH_NPU)
    assert module.torch_npu is ascend_calls
    assert "torch_npu" not in sys.modules


def test_transformers_masks_stay_what_they_are():
    # With a yes it would make booleans of masks that are added.
    source = "_is_torch_npu_available = is_npu_available()"
    module = ran("transformers.integrations.sdpa_attention", source)
    assert module._is_torch_npu_available is False


def test_torch_compile_takes_the_answer_as_a_constant():
    def forward(x):
        return x + 1 if is_npu_available() else x - 1

    compiled = torch.compile(forward, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2


def test_a_librarys_question_is_answered_with_what_follows_from_it():
    module = types.ModuleType("a_library.questions")
    exec(
        "import functools\n"
        "def is_there(check_device=False):\n    return False\n"
        "@functools.lru_cache\ndef computes_bfloat16():\n    return is_there()\n",
        vars(module),
    )
    assert not module.computes_bfloat16()
    answer_in(module, "is_there")
    assert module.computes_bfloat16()


def counted(sizes=None):
    """As accelerate does it: bytes for texts, in the dictionary that is given."""
    if sizes is None:
        return "all there is"
    sizes.update({key: 1000 if size == "1KB" else size for key, size in sizes.items()})
    return dict(sizes)


def test_npu_is_its_index_and_other_keys_stay():
    sizes = {"npu": "1KB", "cpu": 7}
    assert with_indices(counted, sizes) == {0: 1000, "cpu": 7}
    assert sizes == {"npu": 1000, "cpu": 7}
    assert with_indices(counted, {"npu:0": 3}) == {0: 3}


def test_what_does_not_name_npu_is_passed_on():
    sizes = {0: "1KB"}
    assert with_indices(counted, sizes) == {0: 1000}
    assert sizes == {0: 1000}
    assert with_indices(counted) == with_indices(counted, None) == "all there is"
