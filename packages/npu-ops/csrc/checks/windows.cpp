// Checks of pooling, convolution and padding: number of sizes, and matching windows and planes.

#include <algorithm>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

// input (batch, channels, height, width), weight (out, in, ...) or (out, in * ...), kernel size
void check_unfolded(const Given& given, const at::Tensor& input, const at::Tensor& weight,
                    const std::vector<std::int64_t>& kernel) {
  if (!is_computed(input) || input.dim() != 4 || !weight.defined() ||
      (weight.dim() != 2 && weight.dim() != 4))
    return;
  const std::int64_t columns =
      weight.dim() == 2 ? weight.size(1) : weight.size(1) * weight.size(2) * weight.size(3);
  NPU_REQUIRE(given, columns == input.size(1) * kernel[0] * kernel[1],
              "`weight` must hold channels * `kernel_size` elements per output (", input.size(1),
              " * ", kernel[0], " * ", kernel[1], "), got ", weight.sizes(),
              ". Pass the `kernel_size` of the weight.");
}

}  // namespace

// grad_output, self, kernel_size, output_size, indices
template <int kAxes>
void fractional_max_pool_backward(const Given& given) {
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor input = given.tensor(1);
  const at::Tensor indices = given.tensor(4);
  NPU_REQUIRE_INDEX(given, input.dim() > kAxes, "the input must have ", kAxes + 1, " or ",
                    kAxes + 2, " dims, got ", input.sizes(), ". Add the planes.");
  const std::vector<std::int64_t> output_size = given.integers(3);
  NPU_REQUIRE(given, output_size.size() >= kAxes, "`output_size` must have ", kAxes,
              " elements, got ", c10::IntArrayRef(output_size), ". Pass one for each axis.");
  if (!is_single_or_double(input)) return;
  // torch rejects gradients of fewer dims
  if (gradient.dim() < kAxes + 1 + (input.dim() == kAxes + 2)) return;
  NPU_REQUIRE(given, input.dim() <= kAxes + 2, "the input must have ", kAxes + 1, " or ", kAxes + 2,
              " dims, got ", input.sizes(), ". Flatten the batch.");
  NPU_REQUIRE(given,
              gradient.dim() == input.dim() && gradient.sizes().slice(0, input.dim() - kAxes) ==
                                                   input.sizes().slice(0, input.dim() - kAxes),
              "the gradient must have the planes of the input ", input.sizes(), ", got ",
              gradient.sizes(), ". Pass the gradient of the pooled result.");
  NPU_REQUIRE(given, indices.numel() == gradient.numel() && has_room(indices),
              "`indices` must be contiguous and of the shape of the gradient ", gradient.sizes(),
              ", got ", indices.sizes(), ". Pass the result of the forward pass.");
}

// self, output_size
template <int kAxes>
void adaptive_average_pool(const Given& given) {
  require_length(given, 1, "output_size", kAxes);
}

// self, weight, kernel_size, bias, stride, padding
void slow_convolution(const Given& given) {
  require_length(given, 2, "kernel_size", 2);
  require_length(given, 4, "stride", 2);
  require_length(given, 5, "padding", 2);
  check_unfolded(given, given.tensor(0), given.tensor(1), given.integers(2));
}

// grad_output, self, weight, kernel_size, stride, padding
void slow_convolution_backward(const Given& given) {
  require_length(given, 3, "kernel_size", 2);
  require_length(given, 4, "stride", 2);
  require_length(given, 5, "padding", 2);
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor input = given.tensor(1);
  check_unfolded(given, input, given.tensor(2), given.integers(3));
  if (!is_computed(input) || gradient.dim() == 0 || input.dim() == 0) return;
  NPU_REQUIRE(given, gradient.size(0) == input.size(0),
              "the gradient must have the batch of the input (", input.size(0), "), got ",
              gradient.sizes(), ". Pass the gradient of the result.");
}

// input, weight, bias, padding, stride
void nnpack_convolution(const Given& given) {
  const at::Tensor input = given.tensor(0);
  const at::Tensor weight = given.tensor(1);
  const at::Tensor bias = given.tensor(2);
  NPU_REQUIRE(given, input.dim() == 4 && weight.dim() == 4 && input.layout() == at::kStrided,
              "`input` and `weight` must be dense and have 4 dims, got ", input.sizes(), ", ",
              weight.sizes(), ". Add the batch, or convert.");
  require_length(given, 3, "padding", 2);
  require_length(given, 4, "stride", 2);
  const std::vector<std::int64_t> padding = given.integers(3);
  const std::vector<std::int64_t> stride = given.integers(4);
  NPU_REQUIRE(given, std::min(stride[0], stride[1]) > 0 && std::min(padding[0], padding[1]) >= 0,
              "`stride` must be positive and `padding` at least 0, got ", c10::IntArrayRef(stride),
              ", ", c10::IntArrayRef(padding), ". Pass 1 and 0 for none.");
  NPU_REQUIRE(given, !bias.defined() || bias.numel() == weight.size(0),
              "`bias` must hold one element per output of the weight (", weight.size(0), "), got ",
              bias.defined() ? bias.numel() : 0, ". Pass a vector of that length.");
}

template void fractional_max_pool_backward<2>(const Given& given);
template void fractional_max_pool_backward<3>(const Given& given);
template void adaptive_average_pool<2>(const Given& given);
template void adaptive_average_pool<3>(const Given& given);

namespace {

// grad_output, self, padding. Torch itself compares the padded sizes.
template <int kAxes>
void check_padding_backward(const Given& given) {
  require_length(given, 2, "padding", 2 * kAxes);
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor input = given.tensor(1);
  if (!is_computed(input) && !is_linear_algebra(input)) return;
  NPU_REQUIRE(given, input.dim() <= kAxes + 2, "the input must have ", kAxes + 1, " or ", kAxes + 2,
              " dims, got ", input.sizes(), ". Flatten the batch.");
  NPU_REQUIRE(given,
              gradient.dim() == input.dim() && gradient.sizes().slice(0, input.dim() - kAxes) ==
                                                   input.sizes().slice(0, input.dim() - kAxes),
              "the gradient must have the planes of the input ", input.sizes(), ", got ",
              gradient.sizes(), ". Pass the gradient of the padded result.");
}

}  // namespace

template <int kAxes>
void reflection_pad_backward(const Given& given) {
  const at::Tensor input = given.tensor(1);
  if (input.dim() <= kAxes) {
    if (kAxes == 3) return;  // torch rejects it
    NPU_REQUIRE_INDEX(given, false, "the input must have ", kAxes + 1, " dims or more, got ",
                      input.sizes(), ". Add the planes.");
  }
  check_padding_backward<kAxes>(given);
  const std::vector<std::int64_t> padding = given.integers(2);
  for (int axis = 0; axis < kAxes; ++axis) {
    const std::int64_t size = input.size(input.dim() - 1 - axis);
    NPU_REQUIRE(given, padding[2 * axis] < size && padding[2 * axis + 1] < size,
                "`padding` must be smaller than the reflected size (", size, "), got ",
                c10::IntArrayRef(padding), ". Pad less, or in two steps.");
  }
}

template <int kAxes>
void replication_pad_backward(const Given& given) {
  if (given.tensor(1).dim() <= kAxes) return;  // torch rejects it
  check_padding_backward<kAxes>(given);
}

template void reflection_pad_backward<1>(const Given& given);
template void reflection_pad_backward<2>(const Given& given);
template void reflection_pad_backward<3>(const Given& given);
template void replication_pad_backward<1>(const Given& given);
template void replication_pad_backward<2>(const Given& given);
template void replication_pad_backward<3>(const Given& given);

}  // namespace npu::ops::checks
