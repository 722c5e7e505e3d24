// One instruction set's loops, by name.
#pragma once

#include "kernels.h"

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {

void rms_norm_rows(const RmsNormArguments& given, at::ScalarType type);
void swiglu_rows(const SwigluArguments& given, at::ScalarType type);
void rotate_rows(const RotaryArguments& given, at::ScalarType type);
void quantize_rows(const QuantizeArguments& given, at::ScalarType type);
void quantized_linear_rows(const QuantizedLinearArguments& given);
void dequantize_rows(const DequantizeArguments& given, at::ScalarType type);

}  // namespace CPU_CAPABILITY

}  // namespace npu::ops::fused
