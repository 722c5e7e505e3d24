// x @ dequantized(weight).T + bias. For few rows, the integers are read once and widened in
// registers; for many rows, the weight is dequantized for torch's product.

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "linear.h"
#include "vector/kernels.h"

namespace npu::ops::fused {
namespace {

constexpr const char* kQuantizedLinear = "quantized_linear";

// Minimum rows for the dequantized product (benchmarks/fused.py --rows): low if the processor
// multiplies the type itself, such as bfloat16.
std::int64_t many_rows(at::ScalarType type, WeightKind kind) {
  if (type != at::kBFloat16) return 14;
  return kind == WeightKind::kUint4 ? 5 : 3;
}

void check_kind(const at::Tensor& weight, const OptionalTensor& zero_point, std::int64_t bits) {
  TORCH_CHECK_VALUE(bits == 8 || bits == 4, "npu.quantized_linear: `bits` must be 8 or 4, got ",
                    bits, ". Quantize the weight to one of them. [op-value]");
  const at::ScalarType type = weight.scalar_type();
  TORCH_CHECK_VALUE(
      type == at::kByte || (type == at::kChar && bits == 8),
      "npu.quantized_linear: `weight` must be int8 or uint8 for 8 bits, and uint8 with "
      "two values in a byte for 4, got ",
      dtype_of(weight), ", bits ", bits,
      ". Pack it with npu_ops.fused.quantized_linear.pack_int4(). [op-dtype]");
  TORCH_CHECK_VALUE(!zero_point || zero_point->scalar_type() == type,
                    "npu.quantized_linear: `zero_point` must have the dtype of `weight`, got ",
                    zero_point ? dtype_of(*zero_point) : "", ", weight ", dtype_of(weight),
                    ". Convert it with .to(). [op-dtype]");
}

void check_quantized_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale,
                            const OptionalTensor& zero_point, const OptionalTensor& bias,
                            std::int64_t bits) {
  check_float(kQuantizedLinear, "x", x);
  check_rank(kQuantizedLinear, "weight", weight, 2, "(outputs, inputs) or (outputs, inputs / 2)");
  check_kind(weight, zero_point, bits);
  check_float(kQuantizedLinear, "scale", scale);
  check_rank(kQuantizedLinear, "scale", scale, 2, "(outputs, groups)");
  const c10::SymInt inputs = weight.sym_size(1) * (bits == 4 ? 2 : 1);
  TORCH_CHECK_VALUE(
      x.dim() >= 1 && x.sym_size(-1) == inputs,
      "npu.quantized_linear: the last dim of `x` must match the inputs of `weight`, got "
      "x ",
      shape_of(x), ", weight ", shape_of(weight), " of ", bits, " bits, which is ", inputs,
      " inputs. Pass an x of that width. [op-shape]");
  TORCH_CHECK_VALUE(scale.sym_size(0) == weight.sym_size(0) && scale.sym_size(1) >= 1 &&
                        inputs % scale.sym_size(1) == 0 &&
                        (bits == 8 || (inputs / scale.sym_size(1)) % 2 == 0),
                    "npu.quantized_linear: `scale` must be (outputs, groups), groups of equal and, "
                    "for 4 bits, even size, got scale ",
                    shape_of(scale), ", ", weight.sym_size(0), " outputs, ", inputs,
                    " inputs. Choose a group size that divides the inputs. [op-shape]");
  TORCH_CHECK_VALUE(!zero_point || zero_point->sym_sizes() == scale.sym_sizes(),
                    "npu.quantized_linear: `zero_point` must have the shape of `scale`, got ",
                    zero_point ? shape_of(*zero_point) : "", ", scale ", shape_of(scale),
                    ". Pass one per group. [op-shape]");
  check_bias(kQuantizedLinear, bias, weight.sym_size(0), x);
}

WeightKind kind_of(const at::Tensor& weight, std::int64_t bits) {
  if (bits == 4) return WeightKind::kUint4;
  return weight.scalar_type() == at::kChar ? WeightKind::kInt8 : WeightKind::kUint8;
}

// The default zero point is the middle of the range.
float default_zero(WeightKind kind) {
  switch (kind) {
    case WeightKind::kInt8:
      return 0.f;
    case WeightKind::kUint8:
      return 128.f;
    default:
      return 8.f;
  }
}

// (rows, inputs) with each group's even elements before its odd ones, as nibbles are unpacked.
at::Tensor split_pairs(const at::Tensor& x, std::int64_t groups) {
  return x.view({x.size(0), groups, -1, 2}).transpose(2, 3).contiguous().view(x.sizes());
}

struct Weight {
  at::Tensor integers, scale, zero;
  WeightKind kind;
  std::int64_t outputs, inputs, groups;
};

at::Tensor of_few_rows(const at::Tensor& x, const Weight& weight, const OptionalTensor& bias) {
  const at::Tensor rows = x.to(at::kFloat).contiguous();
  const at::Tensor sums = rows.view({x.size(0), weight.groups, -1}).sum(-1);
  const bool is_packed = weight.kind == WeightKind::kUint4;
  const at::Tensor ordered = is_packed ? split_pairs(rows, weight.groups) : rows;
  const at::Tensor shift = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
  at::Tensor y = at::empty({x.size(0), weight.outputs}, rows.options());
  vector_kernels().quantized_linear(
      {ordered.const_data_ptr<float>(), sums.const_data_ptr<float>(),
       weight.integers.const_data_ptr(), weight.scale.const_data_ptr<float>(),
       weight.zero.const_data_ptr<float>(), bias ? shift.const_data_ptr<float>() : nullptr,
       y.data_ptr<float>(), x.size(0), weight.inputs, weight.outputs, weight.groups, weight.kind});
  return y.to(x.scalar_type());
}

// float64 is for gradient checks: plain ops, with the given scale.
at::Tensor of_doubles(const at::Tensor& x, const Weight& weight, const at::Tensor& scale,
                      const OptionalTensor& bias) {
  at::Tensor values = weight.integers;
  if (weight.kind == WeightKind::kUint4) {
    values = at::stack({values.bitwise_and(15), values.bitwise_right_shift(4)}, -1);
  }
  values = values.reshape({weight.outputs, weight.groups, -1}).to(at::kDouble);
  const at::Tensor dense =
      (values - weight.zero.unsqueeze(-1)) * scale.to(at::kDouble).unsqueeze(-1);
  return at::linear(x, dense.view({weight.outputs, weight.inputs}), bias);
}

at::Tensor of_many_rows(const at::Tensor& x, const Weight& weight, const OptionalTensor& bias) {
  at::Tensor dense = at::empty({weight.outputs, weight.inputs}, x.options());
  vector_kernels().dequantize(
      {weight.integers.const_data_ptr(), weight.scale.const_data_ptr<float>(),
       weight.zero.const_data_ptr<float>(), dense.data_ptr(), weight.outputs, weight.inputs,
       weight.groups, weight.kind},
      x.scalar_type());
  return at::linear(x, dense, bias);
}

}  // namespace

at::Tensor quantized_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale,
                            const OptionalTensor& zero_point, const OptionalTensor& bias,
                            std::int64_t bits) {
  check_quantized_linear(x, weight, scale, zero_point, bias, bits);
  Weight given;
  given.kind = kind_of(weight, bits);
  given.outputs = weight.size(0);
  given.inputs = weight.size(1) * (bits == 4 ? 2 : 1);
  given.groups = scale.size(1);
  given.integers = weight.contiguous();
  given.scale = scale.to(at::kFloat).contiguous();
  given.zero = zero_point
                   ? zero_point->to(at::kFloat).contiguous()
                   : at::full(scale.sizes(), default_zero(given.kind), given.scale.options());
  at::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = given.outputs;
  if (x.numel() == 0 || given.outputs == 0) {
    at::Tensor y = at::zeros(sizes, x.options());
    return bias ? y.add_(*bias) : y;
  }
  const at::Tensor rows = x.reshape({-1, given.inputs});
  if (x.scalar_type() == at::kDouble) return of_doubles(rows, given, scale, bias).view(sizes);
  const bool is_few = rows.size(0) < many_rows(x.scalar_type(), given.kind);
  const at::Tensor y = is_few ? of_few_rows(rows, given, bias) : of_many_rows(rows, given, bias);
  return y.view(sizes);
}

at::Tensor quantized_linear_fake(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& scale, const OptionalTensor& zero_point,
                                 const OptionalTensor& bias, std::int64_t bits) {
  check_quantized_linear(x, weight, scale, zero_point, bias, bits);
  return empty_linear(x, weight.sym_size(0));
}

}  // namespace npu::ops::fused
