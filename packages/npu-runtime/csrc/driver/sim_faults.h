// Planted failures and delays of the simulated device, set by tests and met by its table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::sim {

// The planted failure of a call, if its turn has come; its sentence is kept for last_error.
std::optional<npu_status> planted(const char* call);

#define NPU_SIM_FAULT(call)                                     \
  do {                                                          \
    if (const auto planted_ = planted(#call)) return *planted_; \
  } while (false)

// Waits as long as a piece of work is to be delayed.
void delay();

// Each piece of work waits a random time in [least, most] before it runs.
NPU_API void set_delay(std::int64_t least_us, std::int64_t most_us, std::uint64_t seed);

// The function `call` of the driver's table fails `times` times with `status`, after `skip` good
// calls.
NPU_API void inject_failure(std::string call, npu_status status, std::int64_t skip,
                            std::int64_t times);

// No failures and no delay.
NPU_API void clear();

}  // namespace npu::sim
