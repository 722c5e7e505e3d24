// CPU aliases of npu tensors, and the adoption of results of CPU kernels as npu tensors without
// copying.
//
// An alias is a CPU tensor over the bytes of an npu tensor, with a separate storage, because
// kernels take a view's device from the storage. fallback.cpp decides which arguments are aliased,
// and when.
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

// Access of a host kernel to the bytes of an argument.
enum class Access : bool { kRead, kWrite };

// Whether `requires_grad` of the original is visible on the alias. Kernels that select an algorithm
// by it (convolution, attention) need it; for others it would only cost an allocation.
enum class GradFlag : bool { kHidden, kVisible };

// The CPU tensor over the same bytes. Precondition: `tensor` is defined and lives on npu. The
// caller keeps `tensor` alive as long as the alias. Raises for layouts whose memory cannot be
// aliased; sparse ones are taken apart first (sparse.h).
at::Tensor alias_of(const at::Tensor& tensor, Access access, GradFlag grad = GradFlag::kHidden);

// Converts `alias`, created by alias_of for reading, to one for writing: copy-on-write memory is
// copied first. Returns the storage of the alias.
const c10::StorageImpl* prepare_for_write(const at::Tensor& alias, const at::Tensor& original);

// Turns `tensor`, which a CPU kernel created under HostScope, into an npu tensor without copying.
// Memory from outside the pool is copied; the caller handles members of a sparse tensor.
// Precondition: the tensor and its storage have no other users.
void adopt_tensor(const at::Tensor& tensor, c10::DeviceIndex device_index);

// The same for a storage.
void adopt_storage(c10::StorageImpl& storage, c10::DeviceIndex device_index);

// A new npu tensor with the bytes of the CPU tensor `host`, which is not changed.
at::Tensor copy_to_npu(const at::Tensor& host, c10::DeviceIndex device_index);

// An npu tensor over the storage of `base` with the geometry and dtype of `host_view`, a CPU tensor
// that a kernel created over the alias of `base`.
at::Tensor view_from_alias(const at::Tensor& base, const at::Tensor& host_view);

// True for no memory, and for memory of the pool that currently belongs to the CPU, such as a
// kernel's new result under HostScope.
inline bool is_adoptable(const c10::DataPtr& memory) noexcept {
  return memory.device().is_cpu() &&
         (memory.get() == nullptr || (memory.get() == memory.get_context() && owns(memory.get())));
}

// While an instance is alive, this thread is inside a host kernel: CPU memory comes from the pool,
// and calls on aliases skip autograd, which has already run on the npu tensors. Raises in a process
// that may not use the device (npu/process.h).
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
