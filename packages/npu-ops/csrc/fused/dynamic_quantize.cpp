// Activations to int8 by the largest magnitude of each row or group. The loop is in
// vector/dynamic_quantize.cpp.

#include <ATen/ops/empty.h>

#include "check.h"
#include "ops.h"
#include "vector/kernels.h"

namespace npu::ops::fused {
namespace {

void check_dynamic_quantize(const at::Tensor& x, std::optional<std::int64_t> group_size) {
  check_float("dynamic_quantize", "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) >= 1,
                    "npu.dynamic_quantize: `x` must have a last axis with elements, got ",
                    shape_of(x), ". Add one with .unsqueeze(0). [op-shape]");
  TORCH_CHECK_VALUE(
      !group_size || (*group_size >= 1 && x.sym_size(-1) % *group_size == 0),
      "npu.dynamic_quantize: `group_size` must divide the last dim of `x`, got group_size ",
      *group_size, ", x ", shape_of(x), ". Pass None for one scale per row. [op-value]");
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> dynamic_quantize(const at::Tensor& x,
                                                    std::optional<std::int64_t> group_size) {
  check_dynamic_quantize(x, group_size);
  const std::int64_t width = group_size.value_or(x.size(-1));
  at::DimVector scale_sizes(x.sizes().begin(), x.sizes().end());
  scale_sizes.back() = x.size(-1) / width;
  at::Tensor values = at::empty(x.sizes(), x.options().dtype(at::kChar));
  at::Tensor scale = at::empty(scale_sizes, x.options().dtype(at::kFloat));
  if (x.numel() == 0) return {values, scale};
  const at::Tensor rows = x.contiguous();
  vector_kernels().quantize({rows.const_data_ptr(), values.data_ptr<std::int8_t>(),
                             scale.data_ptr<float>(), x.numel() / width, width},
                            x.scalar_type());
  return {values, scale};
}

std::tuple<at::Tensor, at::Tensor> dynamic_quantize_fake(const at::Tensor& x,
                                                         std::optional<std::int64_t> group_size) {
  check_dynamic_quantize(x, group_size);
  c10::SymDimVector scale_sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  scale_sizes.back() = group_size ? x.sym_size(-1) / *group_size : c10::SymInt(1);
  return {at::empty_symint(x.sym_sizes(), x.options().dtype(at::kChar)),
          at::empty_symint(scale_sizes, x.options().dtype(at::kFloat))};
}

}  // namespace npu::ops::fused
