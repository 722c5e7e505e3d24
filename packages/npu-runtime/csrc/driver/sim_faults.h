// Planted failures and delays of the simulated device, as its table meets them; tests set them
// through sim.h.
#pragma once

#include <optional>

#include "npu/driver.h"

namespace npu::sim {

// The planted failure of a call, if its turn has come; its sentence is kept for last_error.
std::optional<npu_status> planted(const char* call);

#define NPU_SIM_FAULT(call)                                     \
  do {                                                          \
    if (const auto planted_ = planted(#call)) return *planted_; \
  } while (false)

// Waits as long as a piece of work is to be delayed.
void delay();

}  // namespace npu::sim
