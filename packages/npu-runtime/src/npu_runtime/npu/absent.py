"""Names of ``torch.cuda`` that ``torch.npu`` does not have, each with reason and way around.

A test compares the two modules: every public name of torch.cuda is a name here or there.
"""

__all__ = ["ABSENT"]

_NVIDIA_LIBRARY = "it is an interface of NVIDIA's own libraries"
_TYPED_STORAGE = (
    "typed storages exist for programs older than torch 2.0. Use torch.UntypedStorage, which "
    "knows npu"
)
_SENSORS = (
    "neither OpenVINO nor the kernel's driver for Intel's NPUs reports it. Linux counts the energy "
    "of the whole processor, in /sys/class/powercap"
)
_BUILD = "it describes the kernels that a CUDA build of torch contains; npu compiles at run time"
_MEMORY = "a driver brings its own memory functions (include/npu/driver.h). Write a driver"

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
    "DeferredCudaCallError": "no call is deferred until the device is opened: each raises at once",
    "GreenContext": "a part of a device cannot be set aside here. Use a stream with a priority",
    "green_contexts": "a part of a device cannot be set aside here. Use a stream with a priority",
    "check_error": f"{_NVIDIA_LIBRARY}. A failed call raises npu_runtime.NpuError by itself",
    "cudaStatus": f"{_NVIDIA_LIBRARY}. Catch npu_runtime.NpuError",
    "cudart": f"{_NVIDIA_LIBRARY}. See torch.npu and npu_runtime.device_info",
    "current_blas_handle": _NVIDIA_LIBRARY,
    "current_solver_handle": _NVIDIA_LIBRARY,
    "gds": "reading files straight into a device's own memory needs a device with its own memory",
    "get_arch_list": f"{_BUILD}. See torch.npu.get_device_capability",
    "get_gencode_flags": f"{_BUILD}. See torch.npu.get_device_capability",
    "has_magma": _NVIDIA_LIBRARY,
    "jiterator": "kernels in CUDA C++ are for CUDA. Use torch.compile",
    "memory_usage": (
        "nothing counts how long the NPU reads and writes memory. Use "
        "torch.npu.device_memory_used for its size, and torch.npu.utilization"
    ),
    "nccl": f"{_NVIDIA_LIBRARY}. Use torch.distributed",
    "power_draw": _SENSORS,
    "profiler": f"{_NVIDIA_LIBRARY}. Use torch.profiler or npu-profiler",
    "sparse": "the module holds legacy names alone. Use torch.sparse_coo_tensor and its relatives",
    "temperature": (
        "neither OpenVINO nor the kernel's driver for Intel's NPUs reports it. Linux has the "
        "processor's, in /sys/class/thermal"
    ),
    "tunable": "kernels here are tuned by measurement, by npu-compiler",
}
