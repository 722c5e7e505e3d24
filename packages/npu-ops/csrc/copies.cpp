// Copies from and to npu: tensors across devices, dtypes and strides, and one element as a number.
// They run on aliases, so a copy between npu and cpu touches each byte once.

#include "kernels.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/util/Exception.h>

#include "alias.h"
#include "hot/bytes.h"
#include "npu/capture.h"
#include "npu/device.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "npu/sync_debug.h"

namespace npu::ops {
namespace {

// The tensor itself if it is on the CPU.
at::Tensor host_view(const at::Tensor& tensor, Access access) {
  if (is_npu(tensor)) return alias_of(tensor, access);
  TORCH_CHECK(tensor.is_cpu(), "npu: copies must be between npu and cpu, got a tensor on ",
              tensor.device(), ". Copy it to cpu first. [copy-device]");
  return tensor;
}

void copy_bytes(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (C10_UNLIKELY(is_capturing())) refuse_capture("a copy");
  if (!non_blocking && source.device() != destination.device())
    note_sync("a copy between cpu and npu");
  const bool is_observed = observe::is_enabled();
  const std::int64_t start_ns = is_observed ? observe::now_ns() : 0;
  check_process();
  if (!hot::copy_plainly(source, destination)) {
    const at::Tensor from = host_view(source, Access::kRead);
    at::Tensor to = host_view(destination, Access::kWrite);
    const HostScope scope(current_device());
    if (C10_UNLIKELY(source._is_zerotensor())) {  // has no memory to read
      to.zero_();
    } else {
      to.copy_(from);
    }
    // Copies between quantized tensors include the scale.
    if (C10_UNLIKELY(to.is_quantized() && is_npu(destination))) {
      at::get_qtensorimpl(destination)->set_quantizer_(at::get_qtensorimpl(to)->quantizer());
    }
  }
  if (C10_UNLIKELY(is_observed)) {
    const char* name = !is_npu(source)       ? "cpu to npu"
                       : is_npu(destination) ? "npu to npu"
                                             : "npu to cpu";
    const at::Tensor& device_side = is_npu(destination) ? destination : source;
    observe::emit_span(
        {.category = "copy",
         .name = name,
         .start_ns = start_ns,
         .end_ns = observe::now_ns(),
         .device_index = device_side.device().index()},
        {observe::Arg::number("bytes", destination.numel() * destination.itemsize())});
  }
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (!self.is_same(source)) copy_bytes(source, self, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  copy_bytes(self, destination, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  copy_bytes(self, destination, /*non_blocking=*/false);
  return destination;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (C10_UNLIKELY(is_capturing())) refuse_capture("reading a number");
  note_sync("reading a number");
  check_process();
  if (const std::optional<at::Scalar> number = hot::plain_number(self)) return *number;
  const at::Tensor alias = alias_of(self, Access::kRead);
  const HostScope scope(current_device());
  return at::_local_scalar_dense(alias);
}

}  // namespace npu::ops
