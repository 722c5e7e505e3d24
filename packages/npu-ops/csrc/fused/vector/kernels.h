// The loops of the fused ops over plain memory. Each source in this directory is compiled once per
// instruction set; vector_kernels() hands out those that torch chose for this machine.
//
// Checks, shapes and allocation are in the op's own file one directory up.
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace npu::ops::fused {

// x, y: (rows, width), with separate row strides; weight: (width,) of the accumulation type. All
// strides are in elements.
struct RmsNormArguments {
  const void* x;
  const void* weight;
  void* y;
  std::int64_t rows, width, x_stride;
  double eps;
};

struct SwigluArguments {
  const void* gate;
  const void* up;
  void* y;
  std::int64_t rows, width, gate_stride, up_stride;
};

// x, y: (batch, heads, length, width) by strides, the last one 1. cos, sin: (batch, length, half)
// of the accumulation type; table_batch_stride is 0 for a shared table.
struct RotaryArguments {
  const void* x;
  const void* cos;
  const void* sin;
  void* y;
  std::int64_t batch, heads, length, width, half;
  std::int64_t x_strides[3], y_strides[3];
  std::int64_t table_batch_stride;
  bool interleaved;
};

// x: (rows, width) contiguous, values likewise, scale: (rows,).
struct QuantizeArguments {
  const void* x;
  std::int8_t* values;
  float* scale;
  std::int64_t rows, width;
};

enum class WeightKind : std::uint8_t { kInt8, kUint8, kUint4 };

// y[m, n] = sum_g scale[n, g] * (sum_k x[m, k] * w[n, k] - zero[n, g] * group_sums[m, g]) + bias[n]
// x: (rows, inputs); for kUint4 each row has its even elements first, then its odd ones, group by
// group. y: (rows, outputs). All contiguous.
struct QuantizedLinearArguments {
  const float* x;
  const float* group_sums;
  const void* weight;
  const float* scale;
  const float* zero_point;  // (outputs, groups)
  const float* bias;        // null for none
  float* y;
  std::int64_t rows, inputs, outputs, groups;
  WeightKind kind;
};

// w[n, k] = (weight[n, k] - zero[n, g]) * scale[n, g] for rows [first, last) of a weight, as
// floats.
struct DequantizeArguments {
  const void* weight;
  const float* scale;
  const float* zero_point;
  void* w;  // float, bfloat16 or half
  std::int64_t outputs, inputs, groups;
  WeightKind kind;
};

struct VectorKernels {
  void (*rms_norm)(const RmsNormArguments&, at::ScalarType);
  void (*swiglu)(const SwigluArguments&, at::ScalarType);
  void (*rotary)(const RotaryArguments&, at::ScalarType);
  void (*quantize)(const QuantizeArguments&, at::ScalarType);
  void (*quantized_linear)(const QuantizedLinearArguments&);
  void (*dequantize)(const DequantizeArguments&, at::ScalarType);
};

const VectorKernels& vector_kernels();

// Per instruction set, by torch's names; defined in table.cpp.
struct DEFAULT_set;
struct AVX2_set;
struct AVX512_set;
template <typename InstructionSet>
const VectorKernels& kernels_of();
template <>
const VectorKernels& kernels_of<DEFAULT_set>();
template <>
const VectorKernels& kernels_of<AVX2_set>();
template <>
const VectorKernels& kernels_of<AVX512_set>();

}  // namespace npu::ops::fused
