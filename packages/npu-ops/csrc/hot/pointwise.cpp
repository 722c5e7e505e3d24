// The table of pointwise ops, each with its torch class, and the few ops without one.

#include <array>

#include <ATen/native/TensorCompare.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_native.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_native.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/clamp_max_native.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_native.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/le_native.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/lerp_native.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/lt_native.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/maximum_native.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/minimum_native.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ne_native.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_native.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_native.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_native.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_backward_native.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_native.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/where_native.h>
#include <ATen/ops/where_ops.h>

#include "hot/kernels.h"
#include "hot/structured.h"

namespace npu::ops::hot {
namespace {

using at::Tensor;
namespace aten = at::_ops;
namespace native = at::native;

// relu is clamp_min(0) on the CPU too. The boxed path rejects bool.
struct Relu : native::structured_clamp_min_out {
  void meta(const Tensor& self) {
    if (self.scalar_type() == c10::ScalarType::Bool) throw Unfit();
    structured_clamp_min_out::meta(self, 0);
  }
  void impl(const Tensor& self, const Tensor& out) { structured_clamp_min_out::impl(self, 0, out); }
};

struct Abs : at::TensorIteratorBase {
  void meta(const Tensor& self) {
    if (self.is_complex()) throw Unfit();  // the result is real
    build_borrowing_unary_op(maybe_get_output(0), self);
  }
  void impl(const Tensor&, const Tensor&) { native::abs_stub(c10::DeviceType::CPU, *this); }
};

// `where` has no class in torch, and its inner kernel requires the final kind of iterator.
Tensor where(c10::DispatchKeySet keys, const Tensor& condition, const Tensor& self,
             const Tensor& other) {
  Inspection inspection(/*allows_numbers=*/true);
  inspection.see(condition);
  inspection.see(self);
  inspection.see(other);
  if (C10_UNLIKELY(!inspection.is_fit() || condition.scalar_type() != c10::ScalarType::Bool ||
                   is_boxed<aten::where_self>())) {
    return Boxed<aten::where_self>::call(keys, condition, self, other);
  }
  const Tensor left = number_as(self, inspection.dtype());
  const Tensor right = number_as(other, inspection.dtype());
  if (C10_UNLIKELY(left.scalar_type() != right.scalar_type() || !is_npu(condition))) {
    return Boxed<aten::where_self>::call(keys, condition, self, other);
  }
  check_call("aten::where.self");
  const c10::OptionalDeviceGuard guard(to_switch_to(inspection.device_index()));
  const Tensor none;
  auto iterator = at::TensorIteratorConfig()
                      .check_all_same_dtype(false)
                      .allow_cpu_scalars(true)
                      .declare_static_dtype(left.scalar_type())
                      .add_output(none)
                      .add_const_input(condition)
                      .add_const_input(left)
                      .add_const_input(right)
                      .build();
  run_in_windows(
      "aten::where.self", [&] { native::where_kernel(c10::DeviceType::CPU, iterator); },
      iterator.output(), condition, self, other);
  return iterator.output();
}

// A comparison with a number is a comparison with a tensor that holds it.
template <typename Comparison>
struct WithNumber : Comparison {
  void meta(const Tensor& self, const at::Scalar& other) {
    number = number_as(other, self.scalar_type());
    Comparison::meta(self, number);
  }
  void impl(const Tensor& self, const at::Scalar&, const Tensor& out) {
    Comparison::impl(self, number, out);
  }
  Tensor number;
};

template <typename Op, typename Structured, Numbers numbers>
torch::CppFunction make() {
  return torch::CppFunction(TORCH_FN((Kernel<Op, Structured, numbers>::call)));
}

template <typename Op, typename Structured, Numbers numbers = Numbers::kNo>
HotKernel row() {
  return {name_of<Op>() + sizeof("aten::") - 1, &make<Op, Structured, numbers>};
}

template <typename Structured, Numbers numbers, typename... Ops>
void add(std::vector<HotKernel>& table) {
  (table.push_back(row<Ops, Structured, numbers>()), ...);
}

std::vector<HotKernel> unary() {
  constexpr Numbers kNo = Numbers::kNo;
  std::vector<HotKernel> rows;
  add<native::structured_cos_out, kNo, aten::cos, aten::cos_, aten::cos_out>(rows);
  add<native::structured_exp_out, kNo, aten::exp, aten::exp_, aten::exp_out>(rows);
  add<native::structured_log_out, kNo, aten::log, aten::log_, aten::log_out>(rows);
  add<native::structured_neg_out, kNo, aten::neg, aten::neg_, aten::neg_out>(rows);
  add<native::structured_reciprocal_out, kNo, aten::reciprocal, aten::reciprocal_,
      aten::reciprocal_out>(rows);
  add<native::structured_rsqrt_out, kNo, aten::rsqrt, aten::rsqrt_, aten::rsqrt_out>(rows);
  add<native::structured_sigmoid_out, kNo, aten::sigmoid, aten::sigmoid_, aten::sigmoid_out>(rows);
  add<native::structured_silu_out, kNo, aten::silu, aten::silu_, aten::silu_out>(rows);
  add<native::structured_sin_out, kNo, aten::sin, aten::sin_, aten::sin_out>(rows);
  add<native::structured_sqrt_out, kNo, aten::sqrt, aten::sqrt_, aten::sqrt_out>(rows);
  add<native::structured_tanh_out, kNo, aten::tanh, aten::tanh_, aten::tanh_out>(rows);
  add<Abs, kNo, aten::abs, aten::abs_, aten::abs_out>(rows);
  add<Relu, kNo, aten::relu, aten::relu_>(rows);
  add<native::structured_pow_Tensor_Scalar_out, kNo, aten::pow_Tensor_Scalar, aten::pow__Scalar,
      aten::pow_Tensor_Scalar_out>(rows);
  add<native::structured_clamp_out, kNo, aten::clamp, aten::clamp_, aten::clamp_out>(rows);
  add<native::structured_clamp_min_out, kNo, aten::clamp_min, aten::clamp_min_,
      aten::clamp_min_out>(rows);
  add<native::structured_clamp_max_out, kNo, aten::clamp_max, aten::clamp_max_,
      aten::clamp_max_out>(rows);
  return rows;
}

std::vector<HotKernel> binary() {
  constexpr Numbers kYes = Numbers::kYes;
  constexpr Numbers kNo = Numbers::kNo;
  std::vector<HotKernel> rows;
  add<native::structured_ufunc_add_CPU, kYes, aten::add_Tensor, aten::add__Tensor, aten::add_out>(
      rows);
  add<native::structured_sub_out, kYes, aten::sub_Tensor, aten::sub__Tensor, aten::sub_out>(rows);
  add<native::structured_mul_out, kYes, aten::mul_Tensor, aten::mul__Tensor, aten::mul_out>(rows);
  add<native::structured_div_out, kYes, aten::div_Tensor, aten::div__Tensor, aten::div_out>(rows);
  add<native::structured_maximum_out, kNo, aten::maximum, aten::maximum_out>(rows);
  add<native::structured_minimum_out, kNo, aten::minimum, aten::minimum_out>(rows);
  add<native::structured_pow_Tensor_Tensor_out, kNo, aten::pow_Tensor_Tensor, aten::pow__Tensor,
      aten::pow_Tensor_Tensor_out>(rows);
  add<native::structured_eq_Tensor_out, kYes, aten::eq_Tensor, aten::eq_Tensor_out>(rows);
  add<WithNumber<native::structured_eq_Tensor_out>, kNo, aten::eq_Scalar>(rows);
  add<native::structured_ne_Tensor_out, kYes, aten::ne_Tensor, aten::ne_Tensor_out>(rows);
  add<WithNumber<native::structured_ne_Tensor_out>, kNo, aten::ne_Scalar>(rows);
  add<native::structured_lt_Tensor_out, kYes, aten::lt_Tensor, aten::lt_Tensor_out>(rows);
  add<WithNumber<native::structured_lt_Tensor_out>, kNo, aten::lt_Scalar>(rows);
  add<native::structured_le_Tensor_out, kYes, aten::le_Tensor, aten::le_Tensor_out>(rows);
  add<WithNumber<native::structured_le_Tensor_out>, kNo, aten::le_Scalar>(rows);
  add<native::structured_gt_Tensor_out, kYes, aten::gt_Tensor, aten::gt_Tensor_out>(rows);
  add<WithNumber<native::structured_gt_Tensor_out>, kNo, aten::gt_Scalar>(rows);
  add<native::structured_ge_Tensor_out, kYes, aten::ge_Tensor, aten::ge_Tensor_out>(rows);
  add<WithNumber<native::structured_ge_Tensor_out>, kNo, aten::ge_Scalar>(rows);
  return rows;
}

std::vector<HotKernel> ternary_and_backward() {
  constexpr Numbers kNo = Numbers::kNo;
  std::vector<HotKernel> rows;
  rows.push_back({"where.self", [] { return torch::CppFunction(TORCH_FN(where)); }});
  add<native::structured_addcmul_out, kNo, aten::addcmul, aten::addcmul_, aten::addcmul_out>(rows);
  add<native::structured_addcdiv_out, kNo, aten::addcdiv, aten::addcdiv_, aten::addcdiv_out>(rows);
  add<native::structured_lerp_Scalar, kNo, aten::lerp_Scalar, aten::lerp__Scalar,
      aten::lerp_Scalar_out>(rows);
  add<native::structured_lerp_Tensor, kNo, aten::lerp_Tensor, aten::lerp__Tensor,
      aten::lerp_Tensor_out>(rows);
  add<native::structured_threshold_backward_out, kNo, aten::threshold_backward>(rows);
  add<native::structured_tanh_backward_out, kNo, aten::tanh_backward>(rows);
  add<native::structured_sigmoid_backward_out, kNo, aten::sigmoid_backward>(rows);
  add<native::structured_silu_backward_out, kNo, aten::silu_backward>(rows);
  return rows;
}

}  // namespace

std::vector<HotKernel> pointwise_kernels() {
  std::vector<HotKernel> rows = unary();
  for (auto part : {binary(), ternary_and_backward()})
    rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

}  // namespace npu::ops::hot
