// The loops of the instruction set that this file is compiled for.

#include "table.h"

#define NPU_JOIN_(a, b) a##b
#define NPU_JOIN(a, b) NPU_JOIN_(a, b)

namespace npu::ops::fused {

template <>
const VectorKernels& kernels_of<NPU_JOIN(CPU_CAPABILITY, _set)>() {
  static constexpr VectorKernels kKernels{rms_norm_rows, swiglu_rows,           rotate_rows,
                                          quantize_rows, quantized_linear_rows, dequantize_rows};
  return kKernels;
}

}  // namespace npu::ops::fused
