// The driver for Intel's devices through OpenVINO: NPU, GPU, or the CPU plugin without an NPU.
#pragma once

#include "npu/driver.h"

namespace npu::openvino {

const npu_driver* driver_table() noexcept;

}  // namespace npu::openvino
