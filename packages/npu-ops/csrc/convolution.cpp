// Convolutions of backends unknown to torch. `aten::convolution` itself goes to the CPU kernel
// (registrations.cpp); these two serve callers of the overrideable pair.

#include "kernels.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

namespace npu::ops {

at::Tensor convolution_overrideable(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    bool transposed, at::IntArrayRef output_padding,
                                    std::int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_overrideable(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> output_mask) {
  const std::int64_t out_channels = transposed ? weight.size(1) * groups : weight.size(0);
  return at::convolution_backward(grad_output, input, weight, at::IntArrayRef{out_channels}, stride,
                                  padding, dilation, transposed, output_padding, groups,
                                  output_mask);
}

}  // namespace npu::ops
