"""Settings and queries of scripts for Ascend."""

import pytest
import torch

from npu_runtime.errors import InputError


def test_options_of_ascends_compiler_are_kept_and_change_nothing():
    assert torch.npu.is_jit_compile_false()
    torch.npu.set_compile_mode(jit_compile=True)
    assert not torch.npu.is_jit_compile_false()
    torch.npu.set_compile_mode(jit_compile=False)
    assert torch.npu.is_jit_compile_false()
    torch.npu.set_option({"ACL_OP_COMPILER_CACHE_MODE": "disable"})
    torch.npu.config.allow_internal_format = True
    torch.npu.matmul.allow_hf32 = torch.npu.conv.allow_hf32 = True
    assert torch.npu.config.allow_internal_format
    assert torch.npu.get_mm_bmm_format_nd()


def test_deterministic_algorithms_are_torchs():
    x = torch.ones(2, device="npu")
    try:
        assert torch.npu.enable_deterministic_with_backward(x) is x
        assert torch.are_deterministic_algorithms_enabled()
        torch.npu.set_deterministic_level(0)
        assert not torch.are_deterministic_algorithms_enabled()
        torch.npu.set_deterministic_level(2)
        torch.npu.disable_deterministic_with_backward(x)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.raises(InputError, match="must be 0, 1 or 2") as caught:
        torch.npu.set_deterministic_level(3)
    assert caught.value.code == "ascend-option"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_overflow_is_looked_for_in_gradients(dtype):
    x = torch.ones(3, dtype=dtype, device="npu")
    assert not torch.npu.npu_check_overflow(x)
    if dtype.is_floating_point:
        assert torch.npu.npu_check_overflow(x / 0)
        assert torch.npu.npu_check_overflow(x * float("nan"))
    assert torch.npu.npu_check_overflow(float("inf"))


def test_a_flag_of_overflow_is_refused_as_there_is_none():
    torch.npu.clear_npu_overflow_flag()
    with pytest.raises(InputError, match="npu_check_overflow") as caught:
        torch.npu.get_npu_overflow_flag()
    assert caught.value.code == "overflow-flag"


def test_autocast_is_a_name_of_the_device():
    with torch.npu.autocast(dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")).dtype == (
            torch.bfloat16
        )
