// Forked processes: a child of a process that used the device has its memory but none of the
// threads behind it, so work there could wait for ever. It is refused instead, as CUDA does.
//
// Which calls count as use is decided by their owners, who call mark_device_used; what Python sees
// of this is torch.npu._is_in_bad_fork.
#pragma once

#include <atomic>

#include "npu/export.h"

namespace npu {

namespace detail {
NPU_API extern std::atomic<bool> in_bad_fork;
[[noreturn]] NPU_API void raise_bad_fork();
}  // namespace detail

// From now on a forked child may not use the device. Idempotent and cheap after the first call.
NPU_API void mark_device_used();

// True in a child that was forked after its parent used the device.
inline bool is_in_bad_fork() noexcept {
  return detail::in_bad_fork.load(std::memory_order_relaxed);
}

// Throws Error [forked-after-use] in such a child. One relaxed load elsewhere.
inline void check_process() {
  if (is_in_bad_fork()) [[unlikely]]
    detail::raise_bad_fork();
}

}  // namespace npu
