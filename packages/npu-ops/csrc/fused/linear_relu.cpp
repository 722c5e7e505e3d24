// relu(x @ weight.T + bias): torch's product, then the activation in place while the result is in
// cache.

#include <ATen/ops/relu.h>

#include "linear.h"

namespace npu::ops::fused {

at::Tensor linear_relu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  check_linear("linear_relu", x, weight, bias);
  return at::linear(x, weight, bias).relu_();
}

at::Tensor linear_relu_fake(const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& bias) {
  check_linear("linear_relu", x, weight, bias);
  return empty_linear(x, weight.sym_size(0));
}

}  // namespace npu::ops::fused
