// Checks of indices into memory, axes, preallocated results, and gradients of table lookups.

#include <ATen/ops/aminmax.h>

#include "checks/families.h"

namespace npu::ops::checks {

// crow_indices, col_indices
void rows_to_coordinates(const Given& given) {
  const at::Tensor rows = given.tensor(0);
  const at::Tensor columns = given.tensor(1);
  if (!is_index(rows) || rows.dim() == 0 || columns.dim() == 0) return;
  NPU_REQUIRE(given,
              rows.dim() == columns.dim() && rows.sizes().slice(0, rows.dim() - 1) ==
                                                 columns.sizes().slice(0, columns.dim() - 1),
              "`crow_indices` and `col_indices` must have the same batch, got ", rows.sizes(), ", ",
              columns.sizes(), ". Pass both from one tensor.");
  NPU_REQUIRE(given, rows.size(-1) > 0, "`crow_indices` must hold rows + 1 elements, got ",
              rows.sizes(), ". Pass a single 0 for no rows.");
  const at::Tensor plain = rows.to(at::kLong).contiguous();
  const std::int64_t length = plain.size(-1);
  const std::int64_t* starts = plain.const_data_ptr<std::int64_t>();
  const std::int64_t count = columns.size(-1);
  for (std::int64_t first = 0; first < plain.numel(); first += length) {
    bool is_rising = starts[first] >= 0 && starts[first + length - 1] <= count;
    for (std::int64_t i = first + 1; i < first + length; ++i)
      is_rising &= starts[i - 1] <= starts[i];
    NPU_REQUIRE(
        given, is_rising,
        "`crow_indices` must be ascending from 0 to the number of `col_indices` (", count,
        "), got other numbers. torch.sparse.check_sparse_tensor_invariants finds where they come "
        "from.");
  }
}

// self, size
void coordinates_to_rows(const Given& given) {
  const at::Tensor rows = given.tensor(0);
  const std::int64_t size = given.integer(1);
  if (!is_index(rows) || rows.numel() == 0) return;
  const auto [least, most] = at::aminmax(rows);
  const auto low = least.item().toLong();
  const auto high = most.item().toLong();
  NPU_REQUIRE(given, low >= 0 && high < size, "`indices` must be from 0 to `size` - 1 (", size - 1,
              "), got ", low, " to ", high, ". Pass the number of rows as size.");
}

// self, values, indices, dim
void running_extreme(const Given& given) {
  const at::Tensor self = given.tensor(0);
  const at::Tensor values = given.tensor(1);
  const at::Tensor indices = given.tensor(2);
  const std::int64_t dim = given.integer(3);
  if (dim >= self.dim() || dim < -self.dim()) return;  // torch refuses
  if (!is_computed(self) && !at::isIntegralType(self.scalar_type(), true)) return;
  NPU_REQUIRE(given, dim >= 0, "`dim` must be from 0 to ", self.dim() - 1, ", got ", dim,
              ". Count from the front.");
  NPU_REQUIRE(given, values.sizes() == self.sizes() && indices.sizes() == self.sizes(),
              "`values` and `indices` must have the shape of `self` ", self.sizes(), ", got ",
              values.sizes(), ", ", indices.sizes(), ". Resize them.");
}

// self, dim, out
void log_cumulative_sum(const Given& given) {
  const at::Tensor self = given.tensor(0);
  const at::Tensor out = given.tensor(2);
  NPU_REQUIRE(given, out.scalar_type() == self.scalar_type(),
              "`out` must have the dtype of `self` (", self.scalar_type(), "), got ",
              out.scalar_type(), ". Call torch.logcumsumexp, which converts.");
}

// self, level, batch_size, out_dim. Under vmap the axis is wrapped, elsewhere it is not.
void batch_axis(const Given& given) {
  const at::Tensor self = given.tensor(0);
  if (self.key_set().has(c10::DispatchKey::Batched)) return;
  const std::int64_t dim = given.integer(3);
  NPU_REQUIRE(given, dim >= 0 && dim <= self.dim(), "`out_dim` must be from 0 to ", self.dim(),
              ", got ", dim, ". Count from the front.");
}

namespace {

void require_range(const Given& given, const at::Tensor& indices, const char* name,
                   std::int64_t count) {
  if (indices.numel() == 0) return;
  const auto [least, most] = at::aminmax(indices);
  const auto low = least.item().toLong();
  const auto high = most.item().toLong();
  NPU_REQUIRE(given, low >= 0 && high < count, "`", name, "` must be from 0 to ", count - 1,
              ", got ", low, " to ", high, ". Pass the values from the forward pass.");
}

// Bags that torch rejects itself, or that are empty.
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
  constexpr std::int64_t kMean = 1;  // max mode finds its rows by ops with checks
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
  NPU_REQUIRE_INDEX(given, gradient.dim() >= 2, "the gradient must have shape (bags, width), got ",
                    gradient.sizes(), ". Add the width.");
  require_range(given, indices, "indices", given.integer(5));
  const at::Tensor weights = given.tensor(8);
  NPU_REQUIRE(given, bags.dim() <= 1 && (!weights.defined() || weights.dim() <= 1),
              "`offset2bag` and `per_sample_weights` must be vectors, got offset2bag ",
              bags.sizes(), ". Pass the values from the forward pass.");
  require_range(given, bags.dim() == 0 ? bags : bags.narrow(0, 0, count), "offset2bag",
                gradient.size(0));
  NPU_REQUIRE(given, mode == kSum || (sizes.numel() >= gradient.size(0) && has_room(sizes)),
              "`bag_size` must hold one element per bag (", gradient.size(0), "), got ",
              sizes.sizes(), ". Pass the result of the forward pass.");
}

// grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
void embedding_backward(const Given& given) {
  if (!given.flag(4) || !is_index(given.tensor(1))) return;
  require_range(given, given.tensor(1), "indices", given.integer(2));
}

}  // namespace npu::ops::checks
