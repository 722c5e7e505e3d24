// The simulated device: stricter than real ones, and slow and faulty on request.
//
// Device memory is protected against the host outside its windows, so a missing wait or window
// crashes a test instead of passing by luck. Work runs on a thread per stream with an injectable
// delay. OpenVINO's CPU plugin computes programs.
#pragma once

#include "npu/driver.h"

namespace npu::sim {

const npu_driver* driver_table() noexcept;

}  // namespace npu::sim
