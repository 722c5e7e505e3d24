// Which driver serves the npu devices of this process.
#pragma once

#include <string>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::driver {

// What the first use of a device will open. Called once by the Python side, which reads the
// environment. `vendor_library` is empty when the vendor's package is not installed.
NPU_API void configure(std::string vendor_library, std::string requested_device);

// The driver, opened at first use. Throws npu::Error [device-absent] when there is none; the same
// error again at every later call, since a process keeps one choice.
NPU_API const npu_driver& table();

// The same without the exception: nullptr when there is none, and open_error() says why.
NPU_API const npu_driver* table_or_null() noexcept;
NPU_API std::string open_error();

}  // namespace npu::driver
