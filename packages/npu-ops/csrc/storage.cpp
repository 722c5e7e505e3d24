// Ops that change a tensor's storage, size or identity without computing. Views (view, as_strided,
// unfold) are torch's device-independent kernels, registered in registrations.cpp.

#include "kernels.h"

#include <algorithm>
#include <limits>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/Storage.h>

#include "npu/allocator.h"

namespace npu::ops {
namespace {

bool is_strided_on_cpu_or_npu(c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::Dense) &&
         (keys.has_backend(c10::BackendComponent::CPUBit) ||
          keys.has_backend(c10::BackendComponent::PrivateUse1Bit));
}

// Torch's own resize copies bytes without waiting for pending work, and on the current device. Done
// here first, torch finds the storage large enough.
void grow(c10::StorageImpl& storage, std::size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  const c10::Storage held(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(held, bytes);
}

bool is_shape(at::IntArrayRef size) {
  return std::none_of(size.begin(), size.end(), [](std::int64_t dim) { return dim < 0; });
}

// Number of elements from the first to the last of a view; bounded, so that products of large
// strides do not overflow.
std::int64_t reaches(at::IntArrayRef size, at::IntArrayRef stride) {
  __int128 last = 0;
  for (std::size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return 0;
    last += static_cast<__int128>(size[i] - 1) * stride[i];
  }
  constexpr __int128 kMost = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(last + 1, kMost));
}

}  // namespace

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  const bool grows = storage != nullptr && is_shape(size) && self.sizes() != size;
  const auto former_bytes = grows ? static_cast<std::int64_t>(storage->nbytes()) : 0;
  if (grows && c10::multiply_integers(size) != 0) {
    grow(*storage, at::detail::computeStorageNbytesContiguous(
                       size, self.itemsize(), static_cast<std::size_t>(self.storage_offset())));
  }
  at::native::resize_(self, size, memory_format);
  if (grows && at::globalContext().deterministicAlgorithms() &&
      at::globalContext().deterministicFillUninitializedMemory()) {
    at::native::fill_resize_deterministic_(self, former_bytes);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  const bool is_new = self.sizes() != size || self.strides() != stride;  // else torch grows nothing
  if (is_new && is_shape(size) && offset >= 0 && size.size() == stride.size() &&
      source.device_type() == c10::DeviceType::PrivateUse1 && source.resizable()) {
    grow(*source.unsafeGetStorageImpl(),
         at::detail::computeStorageNbytes(size, stride, self.itemsize(),
                                          static_cast<std::size_t>(offset)));
  }
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(is_shape(size) && is_shape(stride) && size.size() == stride.size(),
              "aten::_reshape_alias: `size` and `stride` must have the same length and no negative "
              "elements, got ",
              size, ", ", stride, ". Call reshape, which computes both. [argument-contract]");
  const auto elements =
      static_cast<std::int64_t>(self.storage().nbytes() / self.dtype().itemsize());
  TORCH_CHECK(reaches(size, stride) <= elements - self.storage_offset(),
              "aten::_reshape_alias: `size` and `stride` must stay within the storage of ",
              elements, " elements, got ", size, ", ", stride,
              ". Call reshape, which computes both. [argument-contract]");
  return at::native::_reshape_alias(self, size, stride);
}

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

// Torch supports only its own backends here; without this, Module.to("npu") creates new Parameters.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (is_strided_on_cpu_or_npu(self.key_set()) && is_strided_on_cpu_or_npu(from.key_set()))
    return true;
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace npu::ops
