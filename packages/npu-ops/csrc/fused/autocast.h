// Rules of torch.autocast for the ops of torch.ops.npu. Registered in
// csrc/fused/registrations.cpp.
#pragma once

#include <torch/library.h>

namespace npu::ops::fused {

void add_autocast_on_cpu(torch::Library& library);
void add_autocast_on_npu(torch::Library& library);

}  // namespace npu::ops::fused
