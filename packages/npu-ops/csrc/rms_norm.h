// The CPU kernel of aten::_fused_rms_norm_backward.
#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace npu::ops {

// Gradients of input and weight, as requested by `mask`; `rstd` has one value per row.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& gradient, const at::Tensor& input, at::IntArrayRef normalized_shape,
    const at::Tensor& rstd, const std::optional<at::Tensor>& weight, std::array<bool, 2> mask);

}  // namespace npu::ops
