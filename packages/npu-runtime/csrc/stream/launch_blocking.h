// NPU_LAUNCH_BLOCKING: every run waits for its end, so that errors are raised at their source.
#pragma once

#include "npu/export.h"

namespace npu {

NPU_API bool is_launch_blocking() noexcept;
NPU_API void set_launch_blocking(bool is_on) noexcept;

}  // namespace npu
