// Zero-copy views on the other device: torch.npu.as_cpu and torch.npu.as_npu.
//
// A view holds its source storage, shares its version counter, and does not own memory, so it
// cannot be resized. This file checks the arguments; npu_runtime/npu/tensors.py documents them.
#include "python/views.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "npu/allocator.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/host_access.h"
#include "npu/process.h"

namespace npu::python {

namespace {

constexpr c10::DispatchKeySet kViewBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

// Resources of a view: its source storage, and the host's access to it.
struct Owner {
  explicit Owner(c10::StorageImpl& storage)
      : source(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)),
        access(storage.mutable_data()) {}

  c10::intrusive_ptr<c10::StorageImpl> source;
  HostAccess access;
};

void release_owner(void* owner) {
  delete static_cast<Owner*>(owner);
}

void check_layout(const char* function, const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (tensor.layout() == at::kStrided && keys.has(c10::DispatchKey::Dense) &&
      tensor.unsafeGetTensorImpl()->unsafe_storage()) {
    return;
  }
  throw Error(ErrorKind::kInput, "view-layout",
              std::string(function) + ": `tensor` must be dense and strided, got layout " +
                  c10::str(tensor.layout()) + ". Convert it with to_dense(), or view its members.");
}

at::Tensor view_on(const at::Tensor& tensor, c10::Device device) {
  c10::StorageImpl& source = *tensor.storage().unsafeGetStorageImpl();
  void* data = source.mutable_data();  // first: resolves copy-on-write
  c10::DataPtr bytes(data, new Owner(source), &release_owner, device);
  c10::Allocator* allocator =
      device.is_cpu() ? c10::GetAllocator(c10::DeviceType::CPU) : device_allocator();
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), source.nbytes(), std::move(bytes), allocator,
      /*resizable=*/false));
  const auto backend = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(backend) | (tensor.key_set() & kViewBits),
      tensor.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (!tensor.is_inference() && !view.is_inference())
    impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return view;
}

at::Tensor as_cpu(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) {
    throw Error(ErrorKind::kInput, "view-device",
                "torch.npu.as_cpu: `tensor` must be on npu, got one on " + tensor.device().str() +
                    ". Use it as it is, or copy it with .cpu().");
  }
  check_layout("torch.npu.as_cpu", tensor);
  check_process();
  return view_on(tensor, c10::Device(c10::DeviceType::CPU));
}

at::Tensor as_npu(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    throw Error(ErrorKind::kInput, "view-device",
                "torch.npu.as_npu: `tensor` must be on cpu, got one on " + tensor.device().str() +
                    ". Use it as it is, or copy it with .to(\"npu\").");
  }
  check_layout("torch.npu.as_npu", tensor);
  const void* data = tensor.storage().data();
  if (data != nullptr && !owns(data)) {
    throw Error(ErrorKind::kInput, "view-memory",
                "torch.npu.as_npu: `tensor` must have memory of the device, got ordinary CPU "
                "memory. Copy it with .to(\"npu\"), or create it with pin_memory=True.");
  }
  const c10::DeviceIndex index = current_device();
  synchronize(index);  // refuses a device that does not exist
  return view_on(tensor, c10::Device(c10::DeviceType::PrivateUse1, index));
}

}  // namespace

void bind_views(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("as_cpu", &as_cpu, Release());
  module.def("as_npu", &as_npu, Release());
}

}  // namespace npu::python
