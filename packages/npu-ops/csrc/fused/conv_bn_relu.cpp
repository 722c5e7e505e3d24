// relu(batch_norm(convolution(x))) with running statistics: the norm is folded into weight and
// bias, which are small compared with the input, so the result is written once.

#include <ATen/TensorOperators.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "check.h"
#include "ops.h"

namespace npu::ops::fused {
namespace {

constexpr const char* kConvBnRelu = "conv_bn_relu";

void check_per_channel(const char* name, const OptionalTensor& tensor,
                       const c10::SymInt& channels) {
  if (!tensor) return;
  TORCH_CHECK_VALUE(tensor->dim() == 1 && tensor->sym_size(0) == channels, "npu.conv_bn_relu: `",
                    name, "` must have one element per output channel, got ", name, " ",
                    shape_of(*tensor), ", ", channels, " channels. Pass a ", name, " of length ",
                    channels, ". [op-shape]");
  check_float(kConvBnRelu, name, *tensor);
}

void check_option(const char* name, at::IntArrayRef values, std::int64_t axes, std::int64_t least) {
  const auto size = static_cast<std::int64_t>(values.size());
  bool is_valid = size == 1 || size == axes;
  for (const std::int64_t value : values)
    is_valid = is_valid && value >= least;
  TORCH_CHECK_VALUE(is_valid, "npu.conv_bn_relu: `", name, "` must be one number or ", axes,
                    ", each at least ", least, ", got ", values, ". Pass one per spatial axis. ",
                    "[op-value]");
}

std::int64_t per_axis(at::IntArrayRef values, std::int64_t axis) {
  return values.size() == 1 ? values[0] : values[axis];
}

// Checks all arguments and returns the sizes of the result.
c10::SymDimVector checked_sizes(const at::Tensor& x, const at::Tensor& weight,
                                const OptionalTensor& bias, const at::Tensor& running_mean,
                                const at::Tensor& running_var, const OptionalTensor& bn_weight,
                                const OptionalTensor& bn_bias, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef dilation,
                                std::int64_t groups) {
  check_float(kConvBnRelu, "x", x);
  check_same_dtype(kConvBnRelu, "weight", weight, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 3 && x.dim() <= 5 && weight.dim() == x.dim(),
                    "npu.conv_bn_relu: `x` must be (batch, channels, ...) with 1 to 3 spatial "
                    "axes, and `weight` (outputs, channels / groups, ...) of the same rank, got x ",
                    shape_of(x), ", weight ", shape_of(weight),
                    ". Add the missing axes with .unsqueeze(). [op-shape]");
  TORCH_CHECK_VALUE(groups >= 1, "npu.conv_bn_relu: `groups` must be at least 1, got ", groups,
                    ". Pass 1 for a plain convolution. [op-value]");
  const c10::SymInt channels = weight.sym_size(0);
  TORCH_CHECK_VALUE(weight.sym_size(1) * groups == x.sym_size(1) && channels % groups == 0,
                    "npu.conv_bn_relu: `groups` must divide the channels of `weight` (outputs, "
                    "inputs / groups) and `x`, got weight ",
                    shape_of(weight), ", x ", shape_of(x), ", groups ", groups,
                    ". Pass a weight of inputs ", x.sym_size(1), " / ", groups, ". [op-shape]");
  const std::int64_t axes = x.dim() - 2;
  check_option("stride", stride, axes, 1);
  check_option("padding", padding, axes, 0);
  check_option("dilation", dilation, axes, 1);
  check_per_channel("bias", bias, channels);
  check_per_channel("running_mean", running_mean, channels);
  check_per_channel("running_var", running_var, channels);
  check_per_channel("bn_weight", bn_weight, channels);
  check_per_channel("bn_bias", bn_bias, channels);
  c10::SymDimVector sizes{x.sym_size(0), channels};
  for (std::int64_t axis = 0; axis < axes; ++axis) {
    const c10::SymInt reach = (weight.sym_size(axis + 2) - 1) * per_axis(dilation, axis) + 1;
    const c10::SymInt padded = x.sym_size(axis + 2) + 2 * per_axis(padding, axis);
    TORCH_CHECK_VALUE(padded >= reach && weight.sym_size(axis + 2) >= 1,
                      "npu.conv_bn_relu: the kernel must fit into the padded `x`, got weight ",
                      shape_of(weight), ", x ", shape_of(x), ", padding ", padding, ", dilation ",
                      dilation, ". Pad more, or pass a larger `x`. [op-shape]");
    sizes.push_back((padded - reach) / per_axis(stride, axis) + 1);
  }
  return sizes;
}

}  // namespace

at::Tensor conv_bn_relu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                        const at::Tensor& running_mean, const at::Tensor& running_var,
                        const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                        std::int64_t groups, double eps) {
  checked_sizes(x, weight, bias, running_mean, running_var, bn_weight, bn_bias, stride, padding,
                dilation, groups);
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor factor = (running_var.to(type) + eps).rsqrt_();
  if (bn_weight) factor.mul_(bn_weight->to(type));
  at::Tensor shift = running_mean.to(type).neg();
  if (bias) shift.add_(bias->to(type));
  shift.mul_(factor);
  if (bn_bias) shift.add_(bn_bias->to(type));
  at::DimVector column(x.dim(), 1);
  column[0] = -1;
  const at::Tensor folded = (weight.to(type) * factor.view(column)).to(x.scalar_type());
  const at::DimVector no_output_padding(x.dim() - 2, 0);
  return at::convolution(x, folded, shift.to(x.scalar_type()), stride, padding, dilation,
                         /*transposed=*/false, no_output_padding, groups)
      .relu_()
      .contiguous(x.suggest_memory_format());
}

at::Tensor conv_bn_relu_fake(const at::Tensor& x, const at::Tensor& weight,
                             const OptionalTensor& bias, const at::Tensor& running_mean,
                             const at::Tensor& running_var, const OptionalTensor& bn_weight,
                             const OptionalTensor& bn_bias, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                             double eps) {
  const c10::SymDimVector sizes =
      checked_sizes(x, weight, bias, running_mean, running_var, bn_weight, bn_bias, stride, padding,
                    dilation, groups);
  return at::empty_symint(sizes, x.options(), x.suggest_memory_format());
}

}  // namespace npu::ops::fused
