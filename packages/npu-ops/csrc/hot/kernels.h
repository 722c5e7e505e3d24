// The table of hot kernels: ops whose cost on small tensors is that of the call, which therefore
// run without boxing and without aliases. registrations.cpp registers them.
#pragma once

#include <vector>

#include <torch/library.h>

namespace npu::ops::hot {

struct HotKernel {
  const char* name;  // "add.Tensor"
  torch::CppFunction (*make)();
};

// Pointwise ops: one input dtype, memory of npu, anything else to the boxed path.
std::vector<HotKernel> pointwise_kernels();

// Filling and joining.
std::vector<HotKernel> byte_kernels();

// Points torch's own kernels for npu to the CPU's, which the pointwise classes then call.
void register_stubs();

}  // namespace npu::ops::hot
