// Which driver serves the npu devices of this process.
#pragma once

#include <string>
#include <vector>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::driver {

// A driver in a vendor's wheel: a shared library that exports npu_driver_table.
struct VendorDriver {
  std::string name;
  std::string library;
};

struct Settings {
  std::string driver;            // the one asked for; empty: vendors' in turn, then openvino
  std::string device;            // passed to the driver; empty: its choice
  std::string openvino_library;  // empty when openvino is not installed
  std::vector<VendorDriver> vendors;
};

// What the first use of a device will open. Called once by the Python side, which reads the
// environment.
NPU_API void configure(Settings settings);

// The driver, opened at first use. Throws npu::Error [device-absent] when there is none; the same
// error again at every later call, since a process keeps one choice.
NPU_API const npu_driver& table();

// Whether the driver was opened, without opening it.
NPU_API bool is_open() noexcept;

// The same without the exception: nullptr when there is none, and open_error() says why.
NPU_API const npu_driver* table_or_null() noexcept;
NPU_API std::string open_error();

}  // namespace npu::driver
