// Torch's classes look up their inner kernel by device; npu uses the CPU's, on the same bytes.

#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Copy.h>
#include <ATen/native/Fill.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/Pow.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/UnaryOps.h>

#include "hot/kernels.h"

namespace npu::ops::hot {
namespace {

template <auto& stub, typename Function = typename std::remove_cvref_t<decltype(stub)>::FnPtr>
struct ToCpu;

template <auto& stub, typename... Arguments>
struct ToCpu<stub, void (*)(Arguments...)> {
  static void call(Arguments... arguments) { stub(c10::DeviceType::CPU, arguments...); }
};

template <auto&... stubs>
void to_cpu() {
  (stubs.set_privateuse1_dispatch_ptr(&ToCpu<stubs>::call), ...);
}

}  // namespace

void register_stubs() {
  using namespace at::native;
  to_cpu<abs_stub, cos_stub, exp_stub, log_stub, neg_stub, reciprocal_stub, rsqrt_stub,
         sigmoid_stub, sin_stub, sqrt_stub, tanh_stub>();
  to_cpu<silu_stub, silu_backward_stub, sigmoid_backward_stub, tanh_backward_stub,
         threshold_stub>();
  to_cpu<add_stub, mul_stub, div_true_stub, maximum_stub, minimum_stub, pow_tensor_tensor_stub,
         pow_tensor_scalar_stub>();
  to_cpu<eq_stub, ne_stub, lt_stub, le_stub, gt_stub, ge_stub>();
  to_cpu<clamp_scalar_stub, clamp_min_scalar_stub, clamp_max_scalar_stub, where_kernel>();
  to_cpu<addcmul_stub, addcdiv_stub, lerp_kernel_scalar_weight, lerp_kernel_tensor_weight>();
  to_cpu<fill_stub, copy_stub>();
}

}  // namespace npu::ops::hot
