// The npu devices, the current device, and synchronization.
//
// The driver is selected once, at first use (csrc/driver/device_selection.h).
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "npu/export.h"

namespace npu {

// Number of devices. Never throws: 0 if no driver could be loaded (see driver_error()).
NPU_API c10::DeviceIndex device_count() noexcept;

// The thread's current device index; 0 until set.
NPU_API c10::DeviceIndex current_device() noexcept;

// Throws Error [device-absent] or [device-index] unless the device exists.
NPU_API void check_device(c10::DeviceIndex device_index);

// Throw as check_device does.
NPU_API void set_device(c10::DeviceIndex device_index);
NPU_API c10::DeviceIndex exchange_device(c10::DeviceIndex device_index);

// Waits until all work enqueued on the device is done. Throws the first error in it.
NPU_API void synchronize(c10::DeviceIndex device_index);

}  // namespace npu
