// Injected failures and delays of the simulated device, set by tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::sim {

// The injected failure of a call, if any is due; its message is stored for last_error.
std::optional<npu_status> planted(const char* call);

#define NPU_SIM_FAULT(call)                                     \
  do {                                                          \
    if (const auto planted_ = planted(#call)) return *planted_; \
  } while (false)

// Waits for the delay of an item of work.
void delay();

// Delays each item of work by a random time in [least, most].
NPU_API void set_delay(std::int64_t least_us, std::int64_t most_us, std::uint64_t seed);

// Makes the table's function `call` fail `times` times with `status`, after `skip` successful
// calls.
NPU_API void inject_failure(std::string call, npu_status status, std::int64_t skip,
                            std::int64_t times);

// Removes failures and delays.
NPU_API void clear();

}  // namespace npu::sim
