// Host code on device memory: waiting for the device's work on a block, and opening a window where
// the driver protects its memory against the host.
//
// Costs one load without pending work and memory protection.
#pragma once

#include <atomic>

#include "npu/export.h"

namespace npu {

namespace detail {
// Number of pending items of device work, plus streams with an unreported error, plus one if the
// driver protects memory.
NPU_API extern std::atomic<int> host_access_level;
}  // namespace detail

inline bool is_host_access_free() noexcept {
  return detail::host_access_level.load(std::memory_order_acquire) == 0;
}

// Waits until no device work on the block at `data` is pending, throws its errors, and opens a
// window. `data` is the start of a storage's memory; other memory needs nothing. Returns the
// argument of end_host_access if the window must be closed, else nullptr.
NPU_API void* begin_host_access(void* data);
NPU_API void end_host_access(void* window) noexcept;

// A window for a scope.
class HostAccess {
 public:
  explicit HostAccess(const void* data)
      : window_(is_host_access_free() ? nullptr : begin_host_access(const_cast<void*>(data))) {}
  ~HostAccess() {
    if (window_ != nullptr) end_host_access(window_);
  }
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

 private:
  void* window_;
};

}  // namespace npu
