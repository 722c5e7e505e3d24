// Whether this thread captures a graph: host code that would run once and never again must refuse.
#pragma once

#include "npu/export.h"

namespace npu {

NPU_API bool is_capturing() noexcept;

}  // namespace npu
