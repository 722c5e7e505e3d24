// The switch; program.cpp reads it.
#include "stream/launch_blocking.h"

#include <atomic>

namespace npu {

namespace {
std::atomic<bool> is_blocking{false};
}  // namespace

bool is_launch_blocking() noexcept {
  return is_blocking.load(std::memory_order_relaxed);
}

void set_launch_blocking(bool is_on) noexcept {
  is_blocking.store(is_on, std::memory_order_relaxed);
}

}  // namespace npu
