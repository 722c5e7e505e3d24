// Products of rows with packed weights: one table of functions per instruction set.
//
// A row's result is bitwise independent of the number of rows and blocks in a call.
#pragma once

#include "kernel_programs/activation.h"
#include "kernel_programs/packed_linear.h"

namespace npu::ops::kernel_programs {

inline constexpr int kSumsOfSlab = 7;  // of all its integers, of each half's and quarter's

// Prepared input rows of a linear layer.
struct Activations {
  const float* values;  // for float kinds: rows of `stride` floats
  std::size_t stride;
  const std::int8_t* integers;  // for integer kinds: rows of whole slabs, 0 behind the inputs
  const float* scales;          // one for each slab
  const float* sums;            // of the integers, kSumsOfSlab for each slab
};

// Operations after the product: residual + factor * activation(product + bias) (* up, if gated),
// see npu_ops.kernel_programs.program.Linear.
struct Finish {
  const float* bias = nullptr;
  const float* residual = nullptr;
  std::size_t residual_stride = 0;
  float factor = 1;
  Activation activation = Activation::none;
  bool gated = false;
  float soft_cap = 0;  // 0 for none
};

struct LinearKernels {
  const char* name;
  // Quantizes a row to signed 8 bits with a scale per slab. A slab with NaN or an infinity has
  // scale NaN.
  void (*quantize)(const float* x, int inputs, std::int8_t* integers, float* scales, float* sums);
  // The outputs of the blocks [first_block, last_block), in pairs if gated.
  void (*linear)(const PackedLinear& weight, const Activations& x, int rows, float* out,
                 std::size_t out_stride, int first_block, int last_block, const Finish& finish);
  // One output's weights, times a factor: (inputs,).
  void (*embed)(const PackedLinear& weight, std::int64_t entry, float factor, float* out);
};

// The named set's kernels, or by default the best that this processor supports; null if
// unsupported.
const LinearKernels* linear_kernels(const char* name);

}  // namespace npu::ops::kernel_programs
