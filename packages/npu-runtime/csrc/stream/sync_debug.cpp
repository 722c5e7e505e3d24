// Reports of waiting host code for torch.npu.set_sync_debug_mode.
#include "npu/sync_debug.h"

#include <string>

#include <c10/util/Exception.h>

#include "npu/error.h"

namespace npu::detail {

std::atomic<SyncDebugMode> sync_debug_mode{SyncDebugMode::kSilent};

void report_sync(const char* what) {
  const std::string text =
      std::string("npu: ") + what +
      " makes the host wait for the device, which torch.npu.set_sync_debug_mode reports. ";
  if (sync_debug_mode.load(std::memory_order_relaxed) == SyncDebugMode::kWarn) {
    TORCH_WARN(text, "Keep the value on npu, or copy it with non_blocking=True.");
    return;
  }
  throw Error(ErrorKind::kInput, "sync-debug",
              text +
                  "Keep the value on npu, copy it with non_blocking=True, or set the mode to "
                  "\"default\".");
}

}  // namespace npu::detail
