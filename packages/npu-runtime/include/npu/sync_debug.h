// The debug mode of torch.npu.set_sync_debug_mode: host code that waits for the device is reported
// or refused. Costs one load when off.
#pragma once

#include <atomic>

#include "npu/export.h"

namespace npu {

enum class SyncDebugMode : int { kSilent = 0, kWarn = 1, kError = 2 };

namespace detail {
NPU_API extern std::atomic<SyncDebugMode> sync_debug_mode;
NPU_API void report_sync(const char* what);
}  // namespace detail

// `what` describes the wait, such as "reading a number". Warns, or throws Error [sync-debug].
inline void note_sync(const char* what) {
  if (detail::sync_debug_mode.load(std::memory_order_relaxed) != SyncDebugMode::kSilent)
      [[unlikely]]
    detail::report_sync(what);
}

}  // namespace npu
