#include "graph/dependency.h"

#include <utility>

namespace npu::graph {

namespace {

const c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  const c10::Storage& storage = tensor.unsafe_storage();  // none in sparse tensors
  return storage ? storage.unsafeGetStorageImpl() : nullptr;
}

c10::weak_intrusive_ptr<c10::StorageImpl> refer_to(const c10::TensorImpl& tensor) {
  const c10::Storage& storage = tensor.unsafe_storage();
  if (storage) return storage.getWeakStorageImpl();
  return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
}

const void* data_of(const c10::StorageImpl* storage) {
  return storage == nullptr ? nullptr : storage->data();
}

}  // namespace

Dependency::Dependency(std::string name, const at::Tensor& tensor)
    : name_(std::move(name)),
      counter_(tensor.unsafeGetTensorImpl()->version_counter()),
      version_(counter_.current_version()),
      tensor_(tensor.getIntrusivePtr()),
      storage_(refer_to(*tensor.unsafeGetTensorImpl())),
      data_(data_of(storage_of(*tensor.unsafeGetTensorImpl()))),
      offset_(tensor.storage_offset()) {}

// Called for each weight at each replay, so it takes no reference: torch takes the GIL for that if
// a tensor has a Python object, 250 ns (2026-11-23). The weak references keep both objects' memory,
// and only the capture's storage is read.
bool Dependency::is_current() const {
  if (counter_.current_version() != version_) return false;
  if (tensor_.use_count() == 0) return true;
  const c10::TensorImpl& tensor = *tensor_._unsafe_get_target();
  const c10::StorageImpl* storage = storage_of(tensor);
  const bool is_same = storage == storage_._unsafe_get_target() && data_of(storage) == data_ &&
                       tensor.storage_offset() == offset_;
  return is_same || tensor_.use_count() == 0;  // it may be gone by now
}

}  // namespace npu::graph
