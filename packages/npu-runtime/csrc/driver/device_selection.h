// Selects the driver of this process's npu devices.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::driver {

// A driver in a vendor's wheel: a shared library that exports npu_driver_table, or the reason why
// the wheel cannot locate it.
struct VendorDriver {
  std::string name;
  std::string library;
  std::string problem;
};

struct Settings {
  std::string driver;            // requested driver; empty: vendors' in turn, then openvino
  std::string device;            // passed to the driver; empty: its default
  std::string openvino_library;  // empty if openvino is not installed
  // Searches for installed vendor drivers. Called when a device is opened, unless a built-in driver
  // is requested: a search reads the installed packages and takes milliseconds.
  std::function<std::vector<VendorDriver>()> find_vendors;
};

// Sets the driver for the first use. Called once by the Python side, which reads the environment.
NPU_API void configure(Settings settings);

// Opens no driver: every use of a device throws Error [code] with this message. Called before any
// use, if a setting is invalid.
NPU_API void refuse(std::string code, std::string message);

// The driver, opened at first use. Throws npu::Error [device-absent] if there is none, and again at
// every later call, since a process keeps one choice.
NPU_API const npu_driver& table();

// Throws Error [driver-call] with the driver's message if `call` of the table failed.
void check_call(npu_status status, const char* call);

// Whether the driver is open, without opening it.
NPU_API bool is_open() noexcept;

// The same without the exception: returns nullptr instead.
NPU_API const npu_driver* table_or_null() noexcept;

// The table of a built-in driver by its name, not opened; nullptr for an unknown name.
NPU_API const npu_driver* built_in_table(std::string_view name) noexcept;

}  // namespace npu::driver
