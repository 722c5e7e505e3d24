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

bool is_integral(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && at::isIntegralType(tensor.scalar_type(), false);
}

}  // namespace

// grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode
void embedding_bag_backward(const Given& given) {
  constexpr std::int64_t kMax = 2;  // finds its rows by ops that check
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor indices = given.tensor(1);
  const at::Tensor bags = given.tensor(2);
  if (given.integer(7) == kMax || !is_computed(gradient)) return;
  NPU_REQUIRE_INDEX(given, gradient.dim() >= 2, "the gradient must be (bags, width); got ",
                    gradient.sizes(), ". Add the width.");
  if (!is_integral(indices) || !is_integral(bags)) return;
  NPU_REQUIRE(given, indices.dim() == 1 && bags.numel() == indices.numel(),
              "indices must be a vector with one element of offset2bag each; got ", indices.sizes(),
              ", ", bags.sizes(), ". Pass those of the forward.");
  require_range(given, indices, "indices", given.integer(5));
  require_range(given, bags, "offset2bag", gradient.size(0));
  NPU_REQUIRE(given, given.tensor(3).numel() >= gradient.size(0) || given.integer(7) == 0,
              "bag_size must hold one element per bag (", gradient.size(0), "); got ",
              given.tensor(3).sizes(), ". Pass that of the forward.");
}

// grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
void embedding_backward(const Given& given) {
  if (!given.flag(4) || !is_integral(given.tensor(1))) return;
  require_range(given, given.tensor(1), "indices", given.integer(2));
}

}  // namespace npu::ops::checks
