// Common parts of host drivers: the latest failure, and the check of device indices.
//
// Their memory is in host_memory.cpp, their streams and events in host_streams.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "npu/driver.h"

namespace npu::driver {

// Stores the calling thread's message for last_error and returns `status`. The message is "call:
// cause", where call is a function of the table or of the vendor.
npu_status fail(npu_status status, std::string sentence) noexcept;
const char* last_error();

// Number of devices of the open driver.
void set_host_device_count(std::int32_t count) noexcept;
npu_status host_device_count(std::int32_t* count);
// NPU_OK, or the error of `call` for an index that does not exist.
npu_status check_device_index(const char* call, std::int32_t device);

// Copies text into a field of fixed size, truncated if necessary.
void copy_text(char* to, std::size_t bytes, std::string_view text) noexcept;

}  // namespace npu::driver
