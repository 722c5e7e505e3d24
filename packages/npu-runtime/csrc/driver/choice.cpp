// Opens the driver once, on the first use of a device. The drivers themselves are beside this file.
#include "driver/choice.h"

#include <mutex>
#include <utility>

#include "driver/openvino.h"
#include "npu/error.h"

namespace npu::driver {
namespace {

struct Choice {
  std::once_flag once;
  std::string vendor_library;
  std::string requested_device;
  const npu_driver* table = nullptr;
  std::string error;
};

Choice& choice() {
  static auto* instance =
      new Choice;  // outlives every static destructor that may still free memory
  return *instance;
}

void open(Choice& state) {
  const npu_driver* candidate = openvino::driver_table();
  const char* library = state.vendor_library.empty() ? nullptr : state.vendor_library.c_str();
  const char* requested = state.requested_device.empty() ? nullptr : state.requested_device.c_str();
  if (candidate->abi_version != NPU_DRIVER_ABI_VERSION) {
    state.error = std::string("driver ") + candidate->name + " has ABI " +
                  std::to_string(candidate->abi_version) + ", this runtime needs " +
                  std::to_string(NPU_DRIVER_ABI_VERSION);
  } else if (candidate->open(library, requested) != NPU_OK) {
    state.error = candidate->last_error();
  } else {
    state.table = candidate;
  }
}

}  // namespace

void configure(std::string vendor_library, std::string requested_device) {
  choice().vendor_library = std::move(vendor_library);
  choice().requested_device = std::move(requested_device);
}

const npu_driver* table_or_null() noexcept {
  Choice& state = choice();
  std::call_once(state.once, [&state] { open(state); });
  return state.table;
}

std::string open_error() {
  table_or_null();
  return choice().error;
}

const npu_driver& table() {
  if (const npu_driver* found = table_or_null()) return *found;
  throw Error(ErrorKind::kDevice, "device-absent",
              "npu: no device can serve: " + choice().error +
                  ". Choose one that is there with NPU_DEVICE, or run \"npu-runtime info\".");
}

}  // namespace npu::driver
