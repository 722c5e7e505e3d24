// Dispatch of the loops by instruction set: torch's own choice, which ATEN_CPU_CAPABILITY
// overrides.

#include <string>

#include <ATen/Version.h>

#include "kernels.h"

namespace npu::ops::fused {

const VectorKernels& vector_kernels() {
  static const VectorKernels& chosen = []() -> const VectorKernels& {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") return kernels_of<AVX512_set>();
    if (name == "AVX2") return kernels_of<AVX2_set>();
    return kernels_of<DEFAULT_set>();
  }();
  return chosen;
}

}  // namespace npu::ops::fused
