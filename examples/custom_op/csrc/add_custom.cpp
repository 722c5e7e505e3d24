// The op add_custom::add_custom: its schema, argument checks, and the call of its kernel.
//
// The arithmetic is in kernel.h; fake, autograd and converter are in src/add_custom.

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "kernel.h"
#include "npu/capture.h"
#include "npu/host_access.h"
#include "npu/process.h"

namespace {

// --8<-- [start:checks]
void check(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.is_floating_point(), "add_custom: x must be of a float dtype, got ",
                    x.scalar_type(), ". Convert it with x.float().");
  TORCH_CHECK_VALUE(x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type(),
                    "add_custom: y must have the shape and dtype of x, ", x.scalar_type(),
                    x.sizes(), ", got ", y.scalar_type(), y.sizes(), ". Expand or convert it.");
  TORCH_CHECK_VALUE(x.device() == y.device(), "add_custom: y must be on the device of x, ",
                    x.device(), ", got ", y.device(), ". Move it with y.to(x.device).");
  if (!x.is_privateuseone()) return;
  npu::check_process();  // a fork of a process that used the device has its memory alone
  // Host code runs once; a replay of the graph would leave it out.
  TORCH_CHECK(!npu::is_capturing(),
              "add_custom: its kernel runs on the host and cannot be captured. Call it outside "
              "torch.npu.graph, or compile the step with torch.compile(backend=\"npu\").");
}
// --8<-- [end:checks]

// --8<-- [start:call]
// Serves cpu and npu: the memory of an npu tensor is host memory. The windows wait until the device
// has ended its work on it, and cost next to nothing when there is none.
at::Tensor forward(const at::Tensor& x, const at::Tensor& y, double alpha) {
  check(x, y);
  const at::Tensor left = x.contiguous();
  const at::Tensor right = y.contiguous();
  const at::Tensor result = at::empty_like(left);
  const npu::HostAccess reading_left(left.storage().data());
  const npu::HostAccess reading_right(right.storage().data());
  const npu::HostAccess writing(result.storage().data());
  const auto type = left.scalar_type();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "add_custom", [&] {
    using Compute = at::opmath_type<scalar_t>;
    add_elements<scalar_t, Compute>(
        left.const_data_ptr<scalar_t>(), right.const_data_ptr<scalar_t>(),
        result.mutable_data_ptr<scalar_t>(), left.numel(), static_cast<Compute>(alpha));
  });
  return result;
}
// --8<-- [end:call]

}  // namespace

// --8<-- [start:registration]
TORCH_LIBRARY(add_custom, library) {
  library.def("add_custom(Tensor x, Tensor y, float alpha=1.0) -> Tensor");
}

TORCH_LIBRARY_IMPL(add_custom, CPU, library) {
  library.impl("add_custom", forward);
}

TORCH_LIBRARY_IMPL(add_custom, PrivateUse1, library) {  // npu
  library.impl("add_custom", forward);
}
// --8<-- [end:registration]
