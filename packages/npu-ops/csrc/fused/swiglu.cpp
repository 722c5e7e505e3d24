// silu(gate) * up. Two halves of one product are read in place, without a copy. The loop is in
// vector/swiglu.cpp.

#include <ATen/ops/empty.h>

#include "check.h"
#include "ops.h"
#include "vector/kernels.h"

namespace npu::ops::fused {
namespace {

void check_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_float("swiglu", "gate", gate);
  check_same_dtype("swiglu", "up", up, "gate", gate);
  TORCH_CHECK_VALUE(gate.sym_sizes() == up.sym_sizes(),
                    "npu.swiglu: `gate` and `up` must have the same shape, got gate ",
                    shape_of(gate), ", up ", shape_of(up),
                    ". Expand one with .expand_as(). [op-shape]");
}

// Distance between rows of the last axis if all leading axes fold into one, or -1.
std::int64_t row_stride(const at::Tensor& x) {
  if (x.dim() == 0) return 1;
  if (x.stride(-1) != 1 && x.size(-1) != 1) return -1;
  std::int64_t expected = -1, stride = x.size(-1);
  for (std::int64_t axis = x.dim() - 2; axis >= 0; --axis) {
    if (x.size(axis) == 1) continue;
    if (expected == -1) {
      stride = x.stride(axis);
    } else if (x.stride(axis) != expected) {
      return -1;
    }
    expected = x.stride(axis) * x.size(axis);
  }
  return stride;
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;
  if (gate.is_contiguous() && up.is_contiguous()) {
    vector_kernels().swiglu(
        {gate.const_data_ptr(), up.const_data_ptr(), y.data_ptr(), 1, gate.numel(), 0, 0},
        gate.scalar_type());
    return y;
  }
  const at::Tensor g = row_stride(gate) < 0 ? gate.contiguous() : gate;
  const at::Tensor u = row_stride(up) < 0 ? up.contiguous() : up;
  const std::int64_t width = gate.dim() == 0 ? 1 : gate.size(-1);
  vector_kernels().swiglu({g.const_data_ptr(), u.const_data_ptr(), y.data_ptr(),
                           gate.numel() / width, width, row_stride(g), row_stride(u)},
                          gate.scalar_type());
  return y;
}

at::Tensor swiglu_fake(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  return at::empty_symint(gate.sym_sizes(), gate.options());
}

}  // namespace npu::ops::fused
