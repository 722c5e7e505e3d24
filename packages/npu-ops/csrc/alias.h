// CPU aliases of npu tensors, and the way back: what a CPU kernel returns becomes an npu tensor in
// place.
//
// An alias is a CPU tensor over the bytes of an npu tensor; it has a storage of its own, because
// kernels take a view's device from the storage. Which arguments are aliased, and when, is in
// fallback.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "backward.h"
#include "npu/allocator.h"
#include "npu/process.h"
#include "npu/tensor.h"

namespace npu::ops {

// What a host kernel may do with the bytes of an argument.
enum class Access : bool { kRead, kWrite };

// Whether `requires_grad` of the original is visible on the alias. Kernels that choose an algorithm
// by it (convolution, attention) need it; for all others it would cost an allocation for nothing.
enum class GradFlag : bool { kHidden, kVisible };

// The CPU tensor over the same bytes. Precondition: `tensor` is defined and lives on npu. The
// caller keeps `tensor` alive as long as the alias. Raises for layouts whose memory cannot be
// aliased; sparse ones are taken apart first (sparse.h).
at::Tensor alias_of(const at::Tensor& tensor, Access access, GradFlag grad = GradFlag::kHidden);

// Makes `alias`, which alias_of gave for reading, one for writing: copy-on-write memory becomes the
// tensor's own first. Returns the storage of the alias.
const c10::StorageImpl* prepare_for_write(const at::Tensor& alias, const at::Tensor& original);

// Turns `tensor`, which a CPU kernel made under HostScope, into an npu tensor without copying.
// Memory that the pool did not hand out is copied; members of a sparse tensor are the caller's.
// Precondition: nobody else uses the tensor or its storage.
void adopt_tensor(const at::Tensor& tensor, c10::DeviceIndex device_index);

// The same for a storage.
void adopt_storage(c10::StorageImpl& storage, c10::DeviceIndex device_index);

// A new npu tensor with the bytes of the CPU tensor `host`, which stays what it is.
at::Tensor copy_to_npu(const at::Tensor& host, c10::DeviceIndex device_index);

// An npu tensor over the storage of `base` with the geometry and dtype of `host_view`, a CPU tensor
// that a kernel made over the alias of `base`.
at::Tensor view_from_alias(const at::Tensor& base, const at::Tensor& host_view);

// True for no memory at all, and for memory of the pool that is the CPU's for now, as a kernel's
// fresh result is under HostScope.
inline bool is_adoptable(const c10::DataPtr& memory) noexcept {
  return memory.device().is_cpu() &&
         (memory.get() == nullptr || (memory.get() == memory.get_context() && owns(memory.get())));
}

// While one is alive, this thread is inside a host kernel: CPU memory comes from the pool, and
// calls on aliases skip autograd, which has already happened on the npu tensors. Raises in a
// process that may not use the device (npu/process.h).
class HostScope {
 public:
  explicit HostScope(c10::DeviceIndex device_index)
      : pool_(device_index), below_autograd_(c10::autograd_dispatch_keyset_with_ADInplaceOrView) {
    check_process();
    keep_backward_here();
  }

 private:
  PoolScope pool_;
  c10::impl::ExcludeDispatchKeyGuard below_autograd_;
};

}  // namespace npu::ops
