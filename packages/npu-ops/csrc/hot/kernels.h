// The table of hot kernels: the cost of these ops on small tensors is call overhead, so they run
// without boxing and aliases. registrations.cpp registers them.
#pragma once

#include <vector>

#include <torch/library.h>

namespace npu::ops::hot {

struct HotKernel {
  const char* name;  // "add.Tensor"
  torch::CppFunction (*make)();
};

// Pointwise ops: one input dtype, npu memory; other calls take the boxed path.
std::vector<HotKernel> pointwise_kernels();

// Fill and cat.
std::vector<HotKernel> byte_kernels();

// Redirects torch's own npu kernels to the CPU's, which the pointwise classes then call.
void register_stubs();

}  // namespace npu::ops::hot
