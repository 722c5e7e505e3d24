"""Public names of torch.cuda and of torch_npu are names of torch.npu, or absent with a reason."""

import importlib
import types

import pytest
import torch

from npu_runtime.npu.absent import ABSENT

# Modules below torch.cuda whose own public names must be here as well.
SUBMODULES = ("amp", "graphs", "memory", "nvtx", "random", "streams")
# The one question that torch.cuda.amp asks about a CUDA build.
ABSENT_BELOW = frozenset({"amp_definitely_not_available"})

# torch_npu.npu.__all__, of its master branch in November 2026.
NAMES_OF_TORCH_NPU = [
    "BFloat16Storage",
    "BFloat16Tensor",
    "BoolStorage",
    "BoolTensor",
    "ByteStorage",
    "ByteTensor",
    "CharStorage",
    "CharTensor",
    "CubeMathType",
    "DoubleStorage",
    "DoubleTensor",
    "Event",
    "ExternalEvent",
    "FloatStorage",
    "FloatTensor",
    "HalfStorage",
    "HalfTensor",
    "IntStorage",
    "IntTensor",
    "LongStorage",
    "LongTensor",
    "MemPool",
    "NPUGraph",
    "NPUPluggableAllocator",
    "NpuGraphOpHandler",
    "ShortStorage",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "SyncLaunchStream",
    "are_compatible_impl_enabled",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "change_current_allocator",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "config",
    "conv",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "disable_deterministic_with_backward",
    "empty_cache",
    "empty_virt_addr_cache",
    "enable_deterministic_with_backward",
    "finalize_dump",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_limit",
    "get_device_name",
    "get_device_properties",
    "get_mm_bmm_format_nd",
    "get_npu_overflow_flag",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_limit",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "init_dump",
    "initial_seed",
    "ipc_collect",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_jit_compile_false",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "matmul",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "mstx",
    "npurt",
    "obfuscation_calculate",
    "obfuscation_finalize",
    "obfuscation_initialize",
    "register_npu_graph_handler",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "reset_stream_limit",
    "restart_device",
    "seed",
    "seed_all",
    "set_aoe",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_compile_mode",
    "set_deterministic_level",
    "set_device",
    "set_device_limit",
    "set_dump",
    "set_mm_bmm_format_nd",
    "set_op_timeout_ms",
    "set_option",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_stream_limit",
    "set_sync_debug_mode",
    "stop_device",
    "stream",
    "stress_detect",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
    "synchronize",
    "use_compatible_impl",
    "use_mem_pool",
    "utilization",
]


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
