// What drivers that compute on the host share: the latest failure, and the check of device indices.
//
// Their memory is in host_memory.cpp, their streams and events in host_streams.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "npu/driver.h"

namespace npu::driver {

// Keeps the calling thread's sentence for last_error and returns `status`. The sentence is
// "call: what went wrong", where call is a function of the table or of the vendor.
npu_status fail(npu_status status, std::string sentence) noexcept;
const char* last_error();

// How many devices the open driver serves.
void set_host_device_count(std::int32_t count) noexcept;
npu_status host_device_count(std::int32_t* count);
// NPU_OK, or the refusal of an index that does not exist on behalf of `call`.
npu_status check_device_index(const char* call, std::int32_t device);

// Copies text into a field of fixed size, cut where it does not fit; nothing where there is no
// room.
void copy_text(char* to, std::size_t bytes, std::string_view text) noexcept;

}  // namespace npu::driver
