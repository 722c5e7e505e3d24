// The list of devices and each thread's current one.
#include "npu/device.h"

#include <string>

#include "driver/device_selection.h"
#include "npu/error.h"
#include "npu/process.h"
#include "stream/stream_state.h"

namespace npu {

namespace {

thread_local c10::DeviceIndex current_index = 0;

}  // namespace

void check_device(c10::DeviceIndex device_index) {
  driver::table();  // without a device, the reason is the better message
  const c10::DeviceIndex count = device_count();
  if (device_index >= 0 && device_index < count) return;
  throw Error(
      ErrorKind::kDevice, "device-index",
      "npu: device index " + std::to_string(device_index) + " does not exist; there " +
          (count == 1 ? "is 1 npu device" : "are " + std::to_string(count) + " npu devices") +
          ", numbered from 0. Use \"npu:0\".");
}

c10::DeviceIndex device_count() noexcept {
  const npu_driver* driver = driver::table_or_null();  // outside the static: it may run Python code
  static const c10::DeviceIndex count = [driver] {
    std::int32_t found = 0;
    if (driver == nullptr || driver->device_count(&found) != NPU_OK) return c10::DeviceIndex{0};
    return static_cast<c10::DeviceIndex>(found);
  }();
  return count;
}

c10::DeviceIndex current_device() noexcept {
  return current_index;
}

void set_device(c10::DeviceIndex device_index) {
  check_device(device_index);
  current_index = device_index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device_index) {
  const c10::DeviceIndex previous = current_index;
  set_device(device_index);
  return previous;
}

void synchronize(c10::DeviceIndex device_index) {
  check_process();
  check_device(device_index);
  stream::synchronize_device(device_index);
}

}  // namespace npu
