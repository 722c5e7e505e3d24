// The backward of rms_norm on the host. On the CPU, torch composes rms_norm of differentiable ops,
// so the fused op, which npu uses for programs, lacks a CPU kernel.

#include "rms_norm.h"

#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>

namespace npu::ops {

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& gradient, const at::Tensor& input, at::IntArrayRef normalized_shape,
    const at::Tensor& rstd, const std::optional<at::Tensor>& weight, std::array<bool, 2> mask) {
  const auto dtype = at::toOpMathType(input.scalar_type());
  const std::int64_t kept = input.dim() - static_cast<std::int64_t>(normalized_shape.size());
  std::vector<std::int64_t> row_shape = input.sizes().vec(), normalized, batch;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim)
    (dim < kept ? batch : normalized).push_back(dim);
  for (const std::int64_t dim : normalized)
    row_shape[static_cast<std::size_t>(dim)] = 1;
  const bool has_weight = weight && weight->defined();

  const at::Tensor outer = gradient.to(dtype);
  const at::Tensor scale = rstd.to(dtype).reshape(row_shape);
  const at::Tensor unit = input.to(dtype) * scale;
  at::Tensor grad_input, grad_weight;
  if (mask[0]) {
    const at::Tensor inner = has_weight ? outer * weight->to(dtype) : outer;
    const at::Tensor along = (inner * unit).mean(normalized, /*keepdim=*/true);
    grad_input = ((inner - unit * along) * scale).to(input.scalar_type());
  }
  if (mask[1] && has_weight) {
    grad_weight = outer * unit;
    if (!batch.empty()) grad_weight = grad_weight.sum(batch);
    grad_weight = grad_weight.to(weight->scalar_type());
  }
  return {grad_input, grad_weight};
}

}  // namespace npu::ops
