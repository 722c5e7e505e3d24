"""Names of ``torch.cuda`` and ``torch_npu`` that ``torch.npu`` lacks, with reasons.

Tests check that each of their public names is here or in ``torch.npu``.
"""

__all__ = ["ABSENT"]

_NVIDIA_LIBRARY = "it is an interface of NVIDIA's libraries"
_TYPED_STORAGE = (
    "typed storages exist for programs older than torch 2.0. Use torch.UntypedStorage, which "
    "supports npu"
)
_SENSORS = (
    "neither OpenVINO nor the kernel's driver for Intel's NPUs reports it. Linux counts the energy "
    "of the whole processor, in /sys/class/powercap"
)
_BUILD = "it describes the kernels that a CUDA build of torch contains; npu compiles at run time"
_MEMORY = "a driver provides memory functions (include/npu/driver.h). Write a driver"

_ASCEND = "it is part of Ascend's runtime, CANN"
_TASKS = f"{_ASCEND}. Change a captured graph's inputs in place, then replay it"
_CORES = "an NPU's cores cannot be divided among streams here. Use a stream with a priority"

ABSENT: dict[str, str] = {
    "BFloat16Storage": _TYPED_STORAGE,
    "BoolStorage": _TYPED_STORAGE,
    "ByteStorage": _TYPED_STORAGE,
    "CharStorage": _TYPED_STORAGE,
    "ComplexDoubleStorage": _TYPED_STORAGE,
    "ComplexFloatStorage": _TYPED_STORAGE,
    "DoubleStorage": _TYPED_STORAGE,
    "FloatStorage": _TYPED_STORAGE,
    "HalfStorage": _TYPED_STORAGE,
    "IntStorage": _TYPED_STORAGE,
    "LongStorage": _TYPED_STORAGE,
    "ShortStorage": _TYPED_STORAGE,
    "CUDAGraph": "here it is called torch.npu.NPUGraph",
    "CUDAPluggableAllocator": _MEMORY,
    "change_current_allocator": _MEMORY,
    "CudaError": f"{_NVIDIA_LIBRARY}. Catch npu_runtime.NpuError",
    "DeferredCudaCallError": "calls are not deferred until the device is opened, and raise at once",
    "GreenContext": "a part of a device cannot be set aside here. Use a stream with a priority",
    "green_contexts": "a part of a device cannot be set aside here. Use a stream with a priority",
    "check_error": f"{_NVIDIA_LIBRARY}. A failed call raises npu_runtime.NpuError",
    "cudaStatus": f"{_NVIDIA_LIBRARY}. Catch npu_runtime.NpuError",
    "cudart": f"{_NVIDIA_LIBRARY}. See torch.npu and npu_runtime.device_info",
    "current_blas_handle": _NVIDIA_LIBRARY,
    "current_solver_handle": _NVIDIA_LIBRARY,
    "gds": "reading files directly into device memory needs a device with separate memory",
    "get_arch_list": f"{_BUILD}. See torch.npu.get_device_capability",
    "get_gencode_flags": f"{_BUILD}. See torch.npu.get_device_capability",
    "has_magma": _NVIDIA_LIBRARY,
    "jiterator": "kernels in CUDA C++ are for CUDA. Use torch.compile",
    "memory_usage": (
        "the time that the NPU accesses memory is not counted. Use torch.npu.device_memory_used "
        "for its size, and torch.npu.utilization"
    ),
    "nccl": f"{_NVIDIA_LIBRARY}. Use torch.distributed",
    "power_draw": _SENSORS,
    "profiler": f"{_NVIDIA_LIBRARY}. Use torch.profiler or npu-profiler",
    "sparse": "the module holds only legacy names. Use torch.sparse_coo_tensor and its relatives",
    "temperature": (
        "neither OpenVINO nor the kernel's driver for Intel's NPUs reports it. Linux has the "
        "processor's temperature, in /sys/class/thermal"
    ),
    "tunable": "kernels here are tuned by measurement, by npu-compiler",
    "init_dump": f"{_ASCEND}. Dump calls with npu-ops capture",
    "set_dump": f"{_ASCEND}. Dump calls with npu-ops capture",
    "finalize_dump": f"{_ASCEND}. Dump calls with npu-ops capture",
    "NPUPluggableAllocator": _MEMORY,
    "CubeMathType": f"{_ASCEND}. Set the precision of programs with CompilerConfig(dtype=...)",
    "set_aoe": f"{_ASCEND}. Use npu_compiler.tune",
    "stress_detect": f"{_ASCEND}. Use npu-runtime doctor",
    "stop_device": f"{_ASCEND}. A failed program leaves the device usable",
    "restart_device": f"{_ASCEND}. A failed program leaves the device usable",
    "check_uce_in_memory": f"{_ASCEND}. NPUs here compute in the machine's memory",
    "SyncLaunchStream": "its launches are like those of any stream. Call synchronize() after one",
    "ExternalEvent": f"{_ASCEND}. Use torch.npu.Event",
    "graph_task_group_begin": _TASKS,
    "graph_task_group_end": _TASKS,
    "graph_task_update_begin": _TASKS,
    "graph_task_update_end": _TASKS,
    "NpuGraphOpHandler": _TASKS,
    "register_npu_graph_handler": _TASKS,
    "set_device_limit": _CORES,
    "get_device_limit": _CORES,
    "set_stream_limit": _CORES,
    "reset_stream_limit": _CORES,
    "get_stream_limit": _CORES,
    "obfuscation_initialize": _ASCEND,
    "obfuscation_calculate": _ASCEND,
    "obfuscation_finalize": _ASCEND,
    "set_op_timeout_ms": f"{_ASCEND}. A driver limits the time of a program",
    "host_empty_cache": "pinned memory is released with its tensor. Delete the tensor",
    "use_compatible_impl": f"{_ASCEND}. Choose implementations with NPU_OPS_VARIANT",
    "are_compatible_impl_enabled": f"{_ASCEND}. Choose implementations with NPU_OPS_VARIANT",
    "super_kernel_scope_begin": f"{_ASCEND}. torch.compile fuses automatically",
    "super_kernel_scope_end": f"{_ASCEND}. torch.compile fuses automatically",
    "npurt": f"{_ASCEND}. See npu_runtime.device_info",
}
