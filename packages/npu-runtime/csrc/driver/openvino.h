// The driver for Intel's devices through OpenVINO: NPU, GPU, or the CPU plugin where no NPU is
// present.
#pragma once

#include "npu/driver.h"

namespace npu::openvino {

const npu_driver* driver_table() noexcept;

}  // namespace npu::openvino
