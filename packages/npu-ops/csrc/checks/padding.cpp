// Gradients of padding: as many planes as the input has, each larger by the padding.

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

// grad_output, self, padding. Torch itself compares the padded sizes.
template <int kAxes>
void check_padding_backward(const Given& given) {
  require_length(given, 2, "padding", 2 * kAxes);
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor input = given.tensor(1);
  if (!is_computed(input) && !is_linear_algebra(input)) return;
  NPU_REQUIRE(given, input.dim() <= kAxes + 2, "the input must have ", kAxes + 1, " or ", kAxes + 2,
              " dims; got ", input.sizes(), ". Flatten the batch.");
  NPU_REQUIRE(given,
              gradient.dim() == input.dim() && gradient.sizes().slice(0, input.dim() - kAxes) ==
                                                   input.sizes().slice(0, input.dim() - kAxes),
              "the gradient must have the planes of the input ", input.sizes(), "; got ",
              gradient.sizes(), ". Pass the gradient of the padded result.");
}

}  // namespace

template <int kAxes>
void reflection_pad_backward(const Given& given) {
  const at::Tensor input = given.tensor(1);
  if (input.dim() <= kAxes) {
    if (kAxes == 3) return;  // torch refuses
    NPU_REQUIRE_INDEX(given, false, "the input must have ", kAxes + 1, " dims or more; got ",
                      input.sizes(), ". Add the planes.");
  }
  check_padding_backward<kAxes>(given);
  const std::vector<std::int64_t> padding = given.integers(2);
  for (int axis = 0; axis < kAxes; ++axis) {
    const std::int64_t size = input.size(input.dim() - 1 - axis);
    NPU_REQUIRE(given, padding[2 * axis] < size && padding[2 * axis + 1] < size,
                "padding must be smaller than what it reflects (", size, "); got ",
                c10::IntArrayRef(padding), ". Pad less, or in two steps.");
  }
}

template <int kAxes>
void replication_pad_backward(const Given& given) {
  if (given.tensor(1).dim() <= kAxes) return;  // torch refuses
  check_padding_backward<kAxes>(given);
}

template void reflection_pad_backward<1>(const Given& given);
template void reflection_pad_backward<2>(const Given& given);
template void reflection_pad_backward<3>(const Given& given);
template void replication_pad_backward<1>(const Given& given);
template void replication_pad_backward<2>(const Given& given);
template void replication_pad_backward<3>(const Given& given);

}  // namespace npu::ops::checks
