// x * rsqrt(mean(x * x) + eps) * weight over the last axis, in two passes over a row that stays in
// the cache. The loop is in vector/rms_norm.cpp.

#include <ATen/ops/empty.h>

#include "check.h"
#include "ops.h"
#include "vector/kernels.h"

namespace npu::ops::fused {
namespace {

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  check_float("rms_norm", "x", x);
  check_float("rms_norm", "weight", weight);
  TORCH_CHECK_VALUE(x.dim() >= 1, "npu.rms_norm: `x` must have at least one axis, got ",
                    shape_of(x), ". Add one with .unsqueeze(0). [op-shape]");
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1),
                    "npu.rms_norm: `weight` must match the last dim of `x`, got weight ",
                    shape_of(weight), ", x ", shape_of(x), ". Pass a weight of length ",
                    x.sym_size(-1), ". [op-shape]");
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const std::int64_t width = x.size(-1);
  const bool is_matrix = x.dim() == 2 && x.stride(1) == 1;
  const at::Tensor rows = is_matrix ? x : x.contiguous();
  const at::Tensor factors =
      weight.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
  vector_kernels().rms_norm({rows.const_data_ptr(), factors.const_data_ptr(), y.data_ptr(),
                             x.numel() / width, width, is_matrix ? rows.stride(0) : width, eps},
                            x.scalar_type());
  return y;
}

at::Tensor rms_norm_fake(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  return at::empty_symint(x.sym_sizes(), x.options());
}

}  // namespace npu::ops::fused
