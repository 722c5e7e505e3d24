// What changes a tensor's storage or identity without computing anything. Views proper (view,
// as_strided, unfold) are torch's own device-independent bodies, registered in registrations.cpp.

#include "kernels.h"

#include <c10/core/Storage.h>

#include "npu/allocator.h"

namespace npu::ops {
namespace {

bool is_strided_on_cpu_or_npu(c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::Dense) &&
         (keys.has_backend(c10::BackendComponent::CPUBit) ||
          keys.has_backend(c10::BackendComponent::PrivateUse1Bit));
}

}  // namespace

at::Tensor& set_to_nothing(at::Tensor& self) {
  c10::Allocator* allocator = device_allocator();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator->allocate(0), allocator,
                             /*resizable=*/true);
  self.set_(storage, 0, {0}, {});
  return self;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// torch answers for its own backends only; without this, Module.to("npu") makes new Parameters.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (is_strided_on_cpu_or_npu(self.key_set()) && is_strided_on_cpu_or_npu(from.key_set()))
    return true;
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace npu::ops
