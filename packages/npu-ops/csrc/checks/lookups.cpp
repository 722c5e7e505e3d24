// Gradients of lookups in tables: rows that exist, and bags that the gradient has.

#include <ATen/ops/aminmax.h>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

void require_range(const Given& given, const at::Tensor& indices, const char* name,
                   std::int64_t count) {
  if (indices.numel() == 0) return;
  const auto [least, most] = at::aminmax(indices);
  const auto low = least.item().toLong();
  const auto high = most.item().toLong();
  NPU_REQUIRE(given, low >= 0 && high < count, name, " must be from 0 to ", count - 1, "; got ",
              low, " to ", high, ". Pass those of the forward.");
}

// Bags that torch itself refuses, or of which there are none to read.
bool has_own_refusal(const Given& given, const at::Tensor& bags, std::int64_t count) {
  const at::Tensor weights = given.tensor(8);
  const auto is_short = [&](const at::Tensor& tensor) {
    return (tensor.dim() == 0 ? 1 : tensor.size(0)) < count;
  };
  return count == 0 || is_short(bags) || (weights.defined() && is_short(weights));
}

}  // namespace

// grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
// per_sample_weights
void embedding_bag_backward(const Given& given) {
  constexpr std::int64_t kSum = 0;
  constexpr std::int64_t kMean = 1;  // the mode of maxima finds its rows by ops that check
  const std::int64_t mode = given.integer(7);
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor indices = given.tensor(1);
  const at::Tensor bags = given.tensor(2);
  const at::Tensor sizes = given.tensor(3);
  const bool is_known = mode == kSum || mode == kMean;
  if (!is_known || !is_computed(gradient) || !is_index(indices) || indices.dim() > 1) return;
  const at::ScalarType dtype = indices.scalar_type();
  if (bags.scalar_type() != dtype || sizes.scalar_type() != dtype) return;
  const std::int64_t count = indices.numel();
  if (given.integer(5) < 0 || has_own_refusal(given, bags, count)) return;
  NPU_REQUIRE_INDEX(given, gradient.dim() >= 2, "the gradient must be (bags, width); got ",
                    gradient.sizes(), ". Add the width.");
  require_range(given, indices, "indices", given.integer(5));
  const at::Tensor weights = given.tensor(8);
  NPU_REQUIRE(given, bags.dim() <= 1 && (!weights.defined() || weights.dim() <= 1),
              "offset2bag and per_sample_weights must be vectors; got offset2bag ", bags.sizes(),
              ". Pass those of the forward.");
  require_range(given, bags.dim() == 0 ? bags : bags.narrow(0, 0, count), "offset2bag",
                gradient.size(0));
  NPU_REQUIRE(given, mode == kSum || (sizes.numel() >= gradient.size(0) && has_room(sizes)),
              "bag_size must hold one element per bag (", gradient.size(0), "); got ",
              sizes.sizes(), ". Pass that of the forward.");
}

// grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
void embedding_backward(const Given& given) {
  if (!given.flag(4) || !is_index(given.tensor(1))) return;
  require_range(given, given.tensor(1), "indices", given.integer(2));
}

}  // namespace npu::ops::checks
