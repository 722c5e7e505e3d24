// Forked processes: the child of a process that used the device has its memory but not its threads,
// so work could wait forever. The child's use of the device is refused, as in CUDA.
//
// Calls that use the device call mark_device_used; in Python, torch.npu._is_in_bad_fork returns the
// state.
#pragma once

#include <atomic>

#include "npu/export.h"

namespace npu {

namespace detail {
NPU_API extern std::atomic<bool> in_bad_fork;
[[noreturn]] NPU_API void raise_bad_fork();
}  // namespace detail

// Makes later forked children refuse the device. Idempotent and cheap after the first call.
NPU_API void mark_device_used();

// True in a child forked after its parent used the device.
inline bool is_in_bad_fork() noexcept {
  return detail::in_bad_fork.load(std::memory_order_relaxed);
}

// Throws Error [forked-after-use] in such a child. One relaxed load elsewhere.
inline void check_process() {
  if (is_in_bad_fork()) [[unlikely]]
    detail::raise_bad_fork();
}

}  // namespace npu
