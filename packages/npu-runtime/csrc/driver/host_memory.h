// Memory of a driver on the host: pages of the reserved range.
#pragma once

#include <cstddef>
#include <cstdint>

#include "npu/driver.h"

namespace npu::driver {

// The error of `call` for a range that is not whole pages of the attached range.
npu_status check_range(const char* call, const void* address, std::size_t size_bytes);

// The memory functions of the table.
npu_status host_memory_attach(void* begin, std::size_t size_bytes);
npu_status host_memory_commit(std::int32_t device, void* address, std::size_t size_bytes);
npu_status host_memory_decommit(std::int32_t device, void* address, std::size_t size_bytes);
npu_status host_memory_copy(npu_stream* stream, void* to, const void* from, std::size_t size_bytes,
                            npu_done done, void* context);

}  // namespace npu::driver
