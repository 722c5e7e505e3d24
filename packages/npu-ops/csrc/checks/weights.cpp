// Weights in fewer bits: groups that divide the columns, and rows of them.

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

void require_groups(const Given& given, std::int64_t block_size, std::int64_t in_features,
                    std::int64_t out_features) {
  NPU_REQUIRE(given,
              block_size > 0 && in_features > 0 && out_features > 0 && in_features % 2 == 0 &&
                  in_features % block_size == 0,
              "block_size must divide in_features, which are even, and all must be positive; got ",
              block_size, ", in_features ", in_features, ", out_features ", out_features,
              ". Pass in_features for one group per row.");
}

}  // namespace

// inp, packed_weights, block_size, in_features, out_features
void dynamic_int4_product(const Given& given) {
  const at::Tensor input = given.tensor(0);
  if (input.dim() == 0) return;  // torch refuses
  const std::int64_t in_features = given.integer(3);
  require_groups(given, given.integer(2), in_features, given.integer(4));
  NPU_REQUIRE(given, input.dim() == 2 && input.size(1) == in_features && has_room(input),
              "inp must be contiguous and of shape (rows, ", in_features, "); got ", input.sizes(),
              ". Flatten the batch and call .contiguous().");
  // What follows the weights are scales, of which torch's kernel counts none.
  const std::int64_t row = in_features / 2 + in_features / given.integer(2);
  NPU_REQUIRE(given, given.tensor(1).numel() / given.integer(4) >= row,
              "packed_weights must hold weights and scales of each output (", row, "); got ",
              given.tensor(1).sizes(), ". Pass what _dyn_quant_pack_4bit_weight gives.");
}

// weights, scales_zeros, bias, block_size, in_features, out_features
void dynamic_int4_weight(const Given& given) {
  require_groups(given, given.integer(3), given.integer(4), given.integer(5));
}

// weight
void saturated_weight(const Given& given) {
  const at::Tensor weight = given.tensor(0);
  if (weight.layout() != at::kStrided || weight.dim() < 2) return;
  NPU_REQUIRE(given, weight.numel() >= weight.size(0) * weight.size(1),
              "weight must hold rows * columns elements; got ", weight.sizes(), ". Pass a matrix.");
}

}  // namespace npu::ops::checks
