// Checks of layers: statistics and weights of normalization, columns of recurrent cells and
// attention projections, groups of quantized weights.

#include <ATen/ExpandUtils.h>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

void require_per_channel(const Given& given, std::size_t index, const char* name,
                         std::int64_t channels) {
  const at::Tensor tensor = given.tensor(index);
  if (!tensor.defined()) return;
  NPU_REQUIRE(given, tensor.numel() == channels && has_room(tensor), "`", name,
              "` must hold one element per channel of the input (", channels, "), got ",
              tensor.sizes(), ". Pass a vector of length ", channels, ".");
}

// Inputs with fewer dims have no channels; torch reports them itself.
bool has_channels(const at::Tensor& input) {
  return is_computed(input) && input.dim() >= 2;
}

void require_statistics(const Given& given, const char* rule, std::size_t mean,
                        std::size_t variance) {
  NPU_REQUIRE(given, given.tensor(mean).defined() && given.tensor(variance).defined(), rule,
              ", got None. Pass both.");
}

constexpr const char* kInferenceRule =
    "`running_mean` and `running_var` must be given in evaluation mode";

// input, weight, bias, running_mean, running_var
void check_batch_norm(const Given& given, bool has_statistics, bool is_training) {
  const at::Tensor input = given.tensor(0);
  if (!has_channels(input)) return;
  const std::int64_t channels = input.size(1);
  // Torch reports a single one of the two itself.
  if (has_statistics && given.tensor(3).defined() != given.tensor(4).defined()) return;
  require_per_channel(given, 1, "weight", channels);
  require_per_channel(given, 2, "bias", channels);
  if (!has_statistics) {
    NPU_REQUIRE(given, is_training,
                "`training` must be True without running statistics, got False. Pass True.");
    return;
  }
  require_per_channel(given, 3, "running_mean", channels);
  require_per_channel(given, 4, "running_var", channels);
  if (!is_training) require_statistics(given, kInferenceRule, 3, 4);
}

// `dim` is the first or the last; torch rejects others itself.
void check_weight_norm(const Given& given, const at::Tensor& v, const at::Tensor& g,
                       std::int64_t dim) {
  const std::int64_t rank = v.dim();
  if (!is_computed(v) || rank == 0 || (dim != 0 && dim != rank - 1)) return;
  NPU_REQUIRE(given, v.size(dim) != 0, "`v` must have a slice along dim ", dim, ", got ", v.sizes(),
              ". Skip empty weights.");
  NPU_REQUIRE(given, g.numel() == v.size(dim) && has_room(g) && has_room(v),
              "`g` must hold one element per slice of `v` along dim ", dim, " (", v.size(dim),
              "), both contiguous, got v ", v.sizes(), ", g ", g.sizes(), ".",
              " Call torch._weight_norm, which prepares both.");
}

}  // namespace

void batch_norm(const Given& given) {
  check_batch_norm(given, true, given.flag(5));
}

void batch_norm_without_statistics(const Given& given) {
  check_batch_norm(given, false, given.flag(3));
}

void batch_norm_training(const Given& given) {
  check_batch_norm(given, true, true);
}

void batch_norm_inference(const Given& given) {
  check_batch_norm(given, true, false);
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train
void batch_norm_backward(const Given& given) {
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor input = given.tensor(1);
  if (!has_channels(input)) return;
  NPU_REQUIRE(given, gradient.sizes() == input.sizes(),
              "the gradient must have the shape of the input ", input.sizes(), ", got ",
              gradient.sizes(), ". Pass the gradient of the result.");
  const std::int64_t channels = input.size(1);
  NPU_REQUIRE(given, channels != 0, "the input must have a channel, got ", input.sizes(),
              ". Leave empty batches out.");
  require_per_channel(given, 2, "weight", channels);
  // Only those that are read: the others may be empty, as returned by the forward.
  if (given.flag(7)) {
    require_statistics(given, "`save_mean` and `save_invstd` must be given in training mode", 5, 6);
    require_per_channel(given, 5, "save_mean", channels);
    require_per_channel(given, 6, "save_invstd", channels);
  } else {
    require_statistics(given, kInferenceRule, 3, 4);
    require_per_channel(given, 3, "running_mean", channels);
    require_per_channel(given, 4, "running_var", channels);
  }
}

// v, g, dim
void weight_norm(const Given& given) {
  check_weight_norm(given, given.tensor(0), given.tensor(1), given.integer(2));
}

// grad_w, saved_v, saved_g, saved_norms, dim
void weight_norm_backward(const Given& given) {
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor v = given.tensor(1);
  check_weight_norm(given, v, given.tensor(2), given.integer(4));
  check_weight_norm(given, v, given.tensor(3), given.integer(4));
  if (!is_computed(v)) return;
  NPU_REQUIRE(given, gradient.numel() == v.numel() && has_room(gradient),
              "`grad_w` must be contiguous and of the shape of `saved_v` ", v.sizes(), ", got ",
              gradient.sizes(), ". Call .contiguous() on the gradient of the weight.");
}

namespace {

// Torch does not add numbers of these dtypes, and reports it.
bool is_added(const at::Tensor& tensor) {
  return is_computed(tensor) || is_linear_algebra(tensor) ||
         (at::isIntegralType(tensor.scalar_type(), true) && tensor.scalar_type() != at::kUInt16 &&
          tensor.scalar_type() != at::kUInt32 && tensor.scalar_type() != at::kUInt64);
}

// The columns of the sum of those given; torch rejects invalid sums, or sums without columns.
void require_gates(const Given& given, std::initializer_list<std::size_t> summands,
                   std::int64_t gates) {
  std::vector<std::int64_t> shape;
  int count = 0;
  bool is_sum = true;
  for (const std::size_t index : summands) {
    const at::Tensor tensor = given.tensor(index);
    if (!tensor.defined()) continue;
    shape = at::infer_size(shape, tensor.sizes());
    is_sum &= is_added(tensor);
    ++count;
  }
  if (shape.size() < 2 || shape[1] == 0 || (count > 1 && !is_sum)) return;
  // As in torch.chunk.
  const std::int64_t columns = (shape[1] + gates - 1) / gates;
  NPU_REQUIRE(given, (shape[1] + columns - 1) / columns == gates, "the gates must have ", gates,
              " columns per element of the state, got ", c10::IntArrayRef(shape),
              ". Pass the gates from the cell's forward pass.");
}

}  // namespace

// grad_hy, grad_cy, input_gates, hidden_gates, input_bias, hidden_bias, cx, cy
void lstm_cell_backward(const Given& given) {
  if (!given.tensor(0).defined() && !given.tensor(1).defined()) return;
  require_gates(given, {2, 3, 4, 5}, 4);
}

// grad_hy, input_gates, hidden_gates, hx, input_bias, hidden_bias
void gru_cell_backward(const Given& given) {
  require_gates(given, {1, 4}, 3);
  require_gates(given, {2, 5}, 3);
}

// input, hx, ...
void quantized_lstm_cell(const Given& given) {
  const std::size_t states = given.tensors(1).size();
  NPU_REQUIRE(given, states == 2, "`hx` must hold two tensors, the hidden and the cell state, got ",
              states, ". Pass [h, c].");
}

// qkv, qkv_bias, num_heads
void attention_projection(const Given& given) {
  const at::Tensor qkv = given.tensor(0);
  const at::Tensor bias = given.tensor(1);
  const std::int64_t heads = given.integer(2);
  if (!qkv.is_nested() && qkv.dim() < 3) return;  // torch rejects it
  NPU_REQUIRE(given, heads > 0, "`num_heads` must be positive, got ", heads, ". Pass 1 or more.");
  if (!is_computed(qkv)) return;
  NPU_REQUIRE(given, qkv.dim() == 3 && qkv.size(2) > 0,
              "`qkv` must be (batch, sequence, 3 * width) and have a width, got ", qkv.sizes(),
              ". Flatten the batch.");
  NPU_REQUIRE(given, bias.numel() == qkv.size(2), "`qkv_bias` must hold one element per column (",
              qkv.size(2), "), got ", bias.sizes(), ". Pass a vector of that length.");
}

namespace {

void require_groups(const Given& given, std::int64_t block_size, std::int64_t in_features,
                    std::int64_t out_features) {
  NPU_REQUIRE(
      given,
      block_size > 0 && in_features > 0 && out_features > 0 && in_features % 2 == 0 &&
          in_features % block_size == 0,
      "`block_size` must divide `in_features`, which must be even, and all must be positive, got ",
      block_size, ", in_features ", in_features, ", out_features ", out_features,
      ". Pass `in_features` for one group per row.");
}

}  // namespace

// inp, packed_weights, block_size, in_features, out_features
void dynamic_int4_product(const Given& given) {
  const at::Tensor input = given.tensor(0);
  if (input.dim() == 0) return;  // torch rejects it
  const std::int64_t in_features = given.integer(3);
  require_groups(given, given.integer(2), in_features, given.integer(4));
  NPU_REQUIRE(given, input.dim() == 2 && input.size(1) == in_features && has_room(input),
              "`inp` must be contiguous and of shape (rows, ", in_features, "), got ",
              input.sizes(), ". Flatten the batch and call .contiguous().");
  // Scales follow the weights, and torch's kernel does not check their count.
  const std::int64_t row = in_features / 2 + in_features / given.integer(2);
  NPU_REQUIRE(given, given.tensor(1).numel() / given.integer(4) >= row,
              "`packed_weights` must hold weights and scales of each output (", row, "), got ",
              given.tensor(1).sizes(), ". Pass the result of _dyn_quant_pack_4bit_weight.");
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
              "`weight` must hold rows * columns elements, got ", weight.sizes(),
              ". Pass a matrix.");
}

}  // namespace npu::ops::checks
