// Recurrent cells and the projection of attention: columns that divide into gates or heads.

#include <ATen/ExpandUtils.h>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

// torch does not add numbers of these dtypes, and reports it.
bool is_added(const at::Tensor& tensor) {
  return is_computed(tensor) || is_linear_algebra(tensor) ||
         (at::isIntegralType(tensor.scalar_type(), true) && tensor.scalar_type() != at::kUInt16 &&
          tensor.scalar_type() != at::kUInt32 && tensor.scalar_type() != at::kUInt64);
}

// The columns of the sum of those that are given; torch itself refuses a sum that cannot be
// made, or one without columns.
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
  // As torch.chunk counts them.
  const std::int64_t columns = (shape[1] + gates - 1) / gates;
  NPU_REQUIRE(given, (shape[1] + columns - 1) / columns == gates, "the gates must have ", gates,
              " columns per element of the state; got ", c10::IntArrayRef(shape),
              ". Pass those of the cell's forward.");
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
  NPU_REQUIRE(given, states == 2, "hx must hold two tensors, the hidden and the cell state; got ",
              states, ". Pass [h, c].");
}

// qkv, qkv_bias, num_heads
void attention_projection(const Given& given) {
  const at::Tensor qkv = given.tensor(0);
  const at::Tensor bias = given.tensor(1);
  const std::int64_t heads = given.integer(2);
  if (!qkv.is_nested() && qkv.dim() < 3) return;  // torch refuses
  NPU_REQUIRE(given, heads > 0, "num_heads must be positive; got ", heads, ". Pass 1 or more.");
  if (!is_computed(qkv)) return;
  NPU_REQUIRE(given, qkv.dim() == 3 && qkv.size(2) > 0,
              "qkv must be (batch, sequence, 3 * width) and have a width; got ", qkv.sizes(),
              ". Flatten the batch.");
  NPU_REQUIRE(given, bias.numel() == qkv.size(2), "qkv_bias must hold one element per column (",
              qkv.size(2), "); got ", bias.sizes(), ". Pass a vector of that length.");
}

}  // namespace npu::ops::checks
