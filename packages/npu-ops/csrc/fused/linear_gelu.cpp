// gelu(x @ weight.T + bias): torch's product, then the activation in place while the result is in
// cache.

#include <ATen/ops/gelu.h>

#include "linear.h"

namespace npu::ops::fused {
namespace {

void check_linear_gelu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                       std::string_view approximate) {
  check_linear("linear_gelu", x, weight, bias);
  TORCH_CHECK_VALUE(approximate == "none" || approximate == "tanh",
                    "npu.linear_gelu: `approximate` must be 'none' or 'tanh', got '", approximate,
                    "'. Choose one. [op-value]");
}

}  // namespace

at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                       std::string_view approximate) {
  check_linear_gelu(x, weight, bias, approximate);
  at::Tensor product = at::linear(x, weight, bias);
  return at::gelu_(product, approximate);
}

at::Tensor linear_gelu_fake(const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& bias, std::string_view approximate) {
  check_linear_gelu(x, weight, bias, approximate);
  return empty_linear(x, weight.sym_size(0));
}

}  // namespace npu::ops::fused
