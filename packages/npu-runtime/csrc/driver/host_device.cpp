// The message of each thread's latest failure, and the number of devices.
#include "driver/host_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace npu::driver {
namespace {

thread_local std::string last_error_text;
std::int32_t device_count = 0;

}  // namespace

npu_status fail(npu_status status, std::string sentence) noexcept {
  last_error_text = std::move(sentence);
  return status;
}

const char* last_error() {
  return last_error_text.c_str();
}

void set_host_device_count(std::int32_t count) noexcept {
  device_count = count;
}

npu_status host_device_count(std::int32_t* count) {
  *count = device_count;
  return NPU_OK;
}

npu_status check_device_index(const char* call, std::int32_t device) {
  if (device >= 0 && device < device_count) return NPU_OK;
  return fail(NPU_ERROR_ARGUMENT, std::string(call) + ": device " + std::to_string(device) +
                                      " does not exist, there are " + std::to_string(device_count));
}

void copy_text(char* to, std::size_t bytes, std::string_view text) noexcept {
  if (bytes == 0) return;
  const std::size_t n = std::min(bytes - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

}  // namespace npu::driver
