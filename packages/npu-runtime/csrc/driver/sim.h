// The simulated device: strict where real ones are lenient, slow and faulty on request.
//
// Device memory is protected against the host outside its windows, so a missing wait or window
// crashes a test instead of passing by luck. Work runs on a thread per stream with an injectable
// delay. Programs are computed by OpenVINO's CPU plugin.
#pragma once

#include <cstdint>
#include <string>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::sim {

const npu_driver* driver_table() noexcept;

// Each piece of work waits a random time in [least, most] before it runs.
NPU_API void set_delay(std::int64_t least_us, std::int64_t most_us, std::uint64_t seed);

// The function `call` of the driver's table fails `times` times with `status`, after `skip` good
// calls.
NPU_API void inject_failure(std::string call, npu_status status, std::int64_t skip,
                            std::int64_t times);

// No failures and no delay.
NPU_API void clear();

}  // namespace npu::sim
