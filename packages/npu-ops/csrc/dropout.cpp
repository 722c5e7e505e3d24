// Dropout with a mask from the npu generator. Torch's CPU implementation draws from the CPU's.

#include "kernels.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

namespace npu::ops {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability,
                                                  std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const double keep = 1 - probability;
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(keep);
  if (keep == 0) return {input.mul(mask), mask};
  // Divides the mask, not the product, for the same rounding as the CPU's unfused dropout.
  return {mask.to(input.scalar_type()).div_(keep).mul_(input), mask};
}

}  // namespace npu::ops
