// Which driver serves the npu devices of this process.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::driver {

// A driver in a vendor's wheel: a shared library that exports npu_driver_table, or why its wheel
// could not say where that is.
struct VendorDriver {
  std::string name;
  std::string library;
  std::string problem;
};

struct Settings {
  std::string driver;            // the one asked for; empty: vendors' in turn, then openvino
  std::string device;            // passed to the driver; empty: its choice
  std::string openvino_library;  // empty when openvino is not installed
  // Looks for the installed vendors' drivers. Called when a device is opened, and not at all when a
  // built-in driver was asked for: each search reads what is installed, and takes milliseconds.
  std::function<std::vector<VendorDriver>()> find_vendors;
};

// What the first use of a device will open. Called once by the Python side, which reads the
// environment.
NPU_API void configure(Settings settings);

// No driver is opened: every use of a device throws Error [code] with this message. Called before
// any use, when a setting is wrong.
NPU_API void refuse(std::string code, std::string message);

// The driver, opened at first use. Throws npu::Error [device-absent] when there is none; the same
// error again at every later call, since a process keeps one choice.
NPU_API const npu_driver& table();

// Throws Error [driver-call] with the driver's sentence when `call`, one of the table, failed.
void check_call(npu_status status, const char* call);

// Whether the driver was opened, without opening it.
NPU_API bool is_open() noexcept;

// The same without the exception: nullptr when there is none.
NPU_API const npu_driver* table_or_null() noexcept;

// The table of a driver in this wheel by its name, not opened; nullptr where there is none.
NPU_API const npu_driver* built_in_table(std::string_view name) noexcept;

}  // namespace npu::driver
