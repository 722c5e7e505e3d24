// Argument checks of linear_relu, linear_gelu and quantized_linear, and the product shared by the
// first two.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include "check.h"
#include "ops.h"

namespace npu::ops::fused {

inline void check_bias(const char* op, const OptionalTensor& bias, const c10::SymInt& outputs,
                       const at::Tensor& x) {
  if (!bias) return;
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->sym_size(0) == outputs, "npu.", op,
                    ": `bias` must have one element per output, got bias ", shape_of(*bias), ", ",
                    outputs, " outputs. Pass a `bias` of length ", outputs, ". [op-shape]");
  check_same_dtype(op, "bias", *bias, "x", x);
}

inline void check_linear(const char* op, const at::Tensor& x, const at::Tensor& weight,
                         const OptionalTensor& bias) {
  check_float(op, "x", x);
  check_rank(op, "weight", weight, 2, "(outputs, inputs)");
  TORCH_CHECK_VALUE(
      x.dim() >= 1 && x.sym_size(-1) == weight.sym_size(1), "npu.", op,
      ": the last dim of `x` must match the inputs of `weight` (outputs, inputs), got x ",
      shape_of(x), ", weight ", shape_of(weight), ". Pass a `weight` of shape (",
      weight.sym_size(0), ", ", x.dim() >= 1 ? x.sym_size(-1) : c10::SymInt(1), "). [op-shape]");
  check_same_dtype(op, "weight", weight, "x", x);
  check_bias(op, bias, weight.sym_size(0), x);
}

inline at::Tensor empty_linear(const at::Tensor& x, const c10::SymInt& outputs) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.back() = outputs;
  return at::empty_symint(sizes, x.options());
}

}  // namespace npu::ops::fused
