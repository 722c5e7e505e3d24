// Graph captures and host code: a replay would not run it again, so it must refuse.
#pragma once

#include <string>

#include <c10/util/Exception.h>

#include "npu/export.h"

namespace npu {

// Whether this thread captures a graph.
NPU_API bool is_capturing() noexcept;

// Raises the error for host code in a capture. `what` names it.
[[noreturn]] inline void refuse_capture(const std::string& what) {
  TORCH_CHECK(false, "npu.NPUGraph: ", what,
              " runs on the host and cannot be captured; a replay would omit it. Compile the step "
              "with torch.compile(backend=\"npu\"), or move this out of the capture. "
              "[capture-host-op]");
}

}  // namespace npu
