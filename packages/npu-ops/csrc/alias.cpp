// Creates aliases, and adopts results of kernels. The alias storage of a block is created once and
// kept in the block's header; other memory gets a new one each time.

#include "alias.h"

#include <exception>
#include <memory>
#include <utility>

#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>

#include "npu/device.h"
#include "npu/host_access.h"
#include "npu/process.h"
#include "sparse.h"

namespace npu::ops {
namespace {

using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;

const c10::Device kHost{c10::DeviceType::CPU};

// Metadata of a strided tensor outside inference mode.
constexpr DispatchKeySet tracked_keys(BackendComponent backend, DispatchKey autocast) {
  return DispatchKeySet({DispatchKey::Dense, DispatchKey::AutogradFunctionality,
                         DispatchKey::ADInplaceOrView, autocast}) |
         DispatchKeySet(backend);
}
constexpr DispatchKeySet kHostKeys =
    tracked_keys(BackendComponent::CPUBit, DispatchKey::AutocastCPU);
constexpr DispatchKeySet kNpuKeys =
    tracked_keys(BackendComponent::PrivateUse1Bit, DispatchKey::AutocastPrivateUse1);

constexpr DispatchKeySet kViewBits({DispatchKey::Conjugate, DispatchKey::Negative});
constexpr DispatchKeySet kLayoutBits({DispatchKey::Dense, DispatchKey::Quantized});

// Fields of TensorImpl without a setter, accessed through a derived class.
struct ImplFields : c10::TensorImpl {
  static constexpr auto device = &ImplFields::device_opt_;
  static constexpr auto keys = &ImplFields::key_set_;
};

// True for a block of the npu allocator; false for memory from elsewhere, and while it is
// copy-on-write.
bool is_block(const c10::DataPtr& memory) noexcept {
  static const c10::DeleterFnPtr deleter = device_allocator()->raw_deleter();
  return memory.get_deleter() == deleter;
}

// The period in which host code may use a block: begins with a wait for the device's work on it.
class Window {
 public:
  explicit Window(const c10::StorageImpl& storage) : opened_(open(storage)) {}
  ~Window() { close(); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // For memory that was moved.
  void reopen(const c10::StorageImpl& storage) {
    close();
    opened_ = nullptr;
    opened_ = open(storage);
  }

 private:
  static void* open(const c10::StorageImpl& storage) {
    if (C10_LIKELY(is_host_access_free())) return nullptr;
    return begin_host_access(const_cast<void*>(storage.data_ptr().get()));
  }

  void close() noexcept {
    if (C10_UNLIKELY(opened_ != nullptr)) end_host_access(opened_);
  }

  void* opened_;
};

// Both kinds of alias, and their windows, live as long as host code uses the bytes.
class AliasImpl final : public c10::TensorImpl {
 public:
  AliasImpl(c10::Storage&& alias, DispatchKeySet keys, const c10::TensorImpl& source)
      : c10::TensorImpl(VIEW, std::move(alias), keys, source.dtype()),
        window_(*source.unsafe_storage().unsafeGetStorageImpl()) {
    copy_generic_tensor_metadata(&source, this);
    device_opt_ = kHost;
  }

  void move_to(c10::Storage&& alias, const c10::StorageImpl& source) {
    set_storage_keep_dtype(std::move(alias));
    window_.reopen(source);
  }

 private:
  Window window_;
};

class QuantizedAliasImpl final : public at::QTensorImpl {
 public:
  QuantizedAliasImpl(c10::Storage&& alias, DispatchKeySet keys, at::QTensorImpl& source)
      : at::QTensorImpl(std::move(alias), keys, source.dtype(), source.quantizer()),
        window_(*source.unsafe_storage().unsafeGetStorageImpl()) {
    set_storage_offset(source.storage_offset());
    set_sizes_and_strides(source.sizes(), source.strides());
  }

 private:
  Window window_;
};

// The cached alias storage of one block.
struct AliasSlot final : BlockAttachment {
  explicit AliasSlot(c10::intrusive_ptr<c10::StorageImpl> alias) : storage(std::move(alias)) {}
  ~AliasSlot() override {
    if (C10_UNLIKELY(storage.use_count() > 1)) outlive_block();
  }

  // A kernel (for example in Python) kept an alias. It gets a copy: never the block's next owner.
  void outlive_block() noexcept {
    const void* block_data = storage->data_ptr().get();
    if (block_data == nullptr) return;  // moved to its npu storage by a resize
    c10::DataPtr kept;
    try {
      const HostAccess window(block_data);
      kept = c10::GetCPUAllocator()->allocate(storage->nbytes());
      std::memcpy(kept.get(), block_data, storage->nbytes());
    } catch (const std::exception&) {
      storage->set_nbytes(
          static_cast<std::size_t>(0));  // no memory for a copy: leave the storage empty
    }
    storage->set_data_ptr_noswap(std::move(kept));
  }

  c10::intrusive_ptr<c10::StorageImpl> storage;
};

// The context stays null, so that the alias is not taken for owned memory (lazy clones, adoption).
c10::intrusive_ptr<c10::StorageImpl> new_alias_storage(const c10::StorageImpl& storage,
                                                       c10::DataPtr&& memory) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               storage.nbytes(), std::move(memory),
                                               c10::GetCPUAllocator(), storage.resizable());
}

void release_storage(void* owner) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(owner));
}

// For memory without a block: the alias keeps the npu storage, because the end of the memory is not
// reported.
c10::Storage owning_alias(c10::StorageImpl& storage) {
  c10::raw::intrusive_ptr::incref(&storage);
  c10::DataPtr memory(const_cast<void*>(storage.data_ptr().get()), &storage, &release_storage,
                      kHost);
  return c10::Storage(new_alias_storage(storage, std::move(memory)));
}

c10::StorageImpl* cached_alias(Block& block, const c10::StorageImpl& storage) {
  BlockAttachment* slot = block.attachment.load(std::memory_order_acquire);
  if (C10_UNLIKELY(slot == nullptr)) {
    auto fresh = std::make_unique<AliasSlot>(
        new_alias_storage(storage, c10::DataPtr(storage.data_ptr().get(), kHost)));
    if (block.attachment.compare_exchange_strong(slot, fresh.get(), std::memory_order_acq_rel)) {
      slot = fresh.release();
    }
  }
  return static_cast<AliasSlot*>(slot)->storage.get();
}

c10::Storage alias_storage(c10::StorageImpl& storage, Access access) {
  check_process();  // before a forked child writes into a header that it may share with its parent
  if (C10_UNLIKELY(!is_block(storage.data_ptr()))) {
    // Readers of copy-on-write memory share it. A writer must own it first, or it writes into both.
    if (access == Access::kWrite) storage.mutable_data_ptr();
  }
  void* data = storage.data_ptr().get();
  if (C10_UNLIKELY(data == nullptr || !is_block(storage.data_ptr()))) {
    return owning_alias(storage);
  }
  c10::StorageImpl* alias = cached_alias(*(static_cast<Block*>(data) - 1), storage);
  if (C10_UNLIKELY(alias->nbytes() != storage.nbytes())) alias->set_nbytes(storage.nbytes());
  if (C10_UNLIKELY(alias->resizable() != storage.resizable())) {
    alias->set_resizable(storage.resizable());
  }
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(alias));
}

// A CPU kernel would follow the null pointer.
void check_memory(const c10::TensorImpl& source) {
  if (C10_LIKELY(source.unsafe_storage().data() != nullptr)) return;
  TORCH_CHECK(source.numel() == 0 || source.key_set().has(DispatchKey::ZeroTensor),
              "npu: the storage of a tensor of ", source.numel(),
              " elements must not be empty, got 0 bytes after a resize. Resize it before use. "
              "[storage-freed]");
}

at::Tensor alias_of_quantized(const at::Tensor& tensor, Access access, DispatchKeySet keys) {
  // A view with another dtype keeps the key of a quantized tensor, and drops its quantizer.
  auto* source = dynamic_cast<at::QTensorImpl*>(tensor.unsafeGetTensorImpl());
  TORCH_CHECK(source != nullptr,
              "npu: a quantized tensor must not be viewed as another dtype, got ",
              tensor.scalar_type(), ". Take int_repr() first. [alias-layout]");
  return at::Tensor(c10::make_intrusive<QuantizedAliasImpl>(
      alias_storage(*source->unsafe_storage().unsafeGetStorageImpl(), access), keys, *source));
}

void flip_keys(c10::TensorImpl& impl, c10::DeviceIndex device_index) {
  DispatchKeySet& keys = impl.*ImplFields::keys;
  if (C10_LIKELY(keys == kHostKeys)) {
    keys = kNpuKeys;
  } else {
    const bool had_autocast = keys.has(DispatchKey::AutocastCPU);
    keys = keys.remove(DispatchKey::AutocastCPU).remove_backend(BackendComponent::CPUBit) |
           DispatchKeySet(BackendComponent::PrivateUse1Bit);
    if (had_autocast) keys = keys.add(DispatchKey::AutocastPrivateUse1);
  }
  impl.*ImplFields::device = c10::Device(c10::DeviceType::PrivateUse1, device_index);
}

}  // namespace

at::Tensor alias_of(const at::Tensor& tensor, Access access, GradFlag grad) {
  c10::TensorImpl& source = *tensor.unsafeGetTensorImpl();
  const DispatchKeySet source_keys = source.key_set();
  DispatchKeySet keys =
      (source_keys & (kLayoutBits | kViewBits)) | DispatchKeySet(BackendComponent::CPUBit);

  const bool shows_grad = grad == GradFlag::kVisible && source.requires_grad();
  if (C10_UNLIKELY(shows_grad)) {
    // Without this key, torch treats the alias as an inference tensor, which cannot require grad.
    keys = keys.add(DispatchKey::ADInplaceOrView);
  }
  at::Tensor alias;
  if (C10_LIKELY(source_keys.has(DispatchKey::Dense) && source.unsafe_storage())) {
    check_memory(source);
    alias = at::Tensor(c10::make_intrusive<AliasImpl>(
        alias_storage(*source.unsafe_storage().unsafeGetStorageImpl(), access), keys, source));
  } else if (source_keys.has(DispatchKey::Quantized)) {
    alias = alias_of_quantized(tensor, access, keys);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "npu: tensors of host kernels must have addressable memory, got dispatch keys ",
        source_keys, ". Convert it to a strided tensor first. [alias-layout]");
  }
  if (C10_UNLIKELY(shows_grad)) alias.unsafeGetTensorImpl()->set_requires_grad(true);
  return alias;
}

const c10::StorageImpl* prepare_for_write(const at::Tensor& alias, const at::Tensor& original) {
  c10::TensorImpl& impl = *alias.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *original.storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(!is_block(storage.data_ptr()))) {
    c10::Storage writable = alias_storage(storage, Access::kWrite);
    if (auto* plain = dynamic_cast<AliasImpl*>(&impl)) {
      plain->move_to(std::move(writable), storage);
    } else {  // quantized memory is never copy-on-write, so it was not moved
      impl.set_storage_keep_dtype(std::move(writable));
    }
  }
  return impl.unsafe_storage().unsafeGetStorageImpl();
}

void adopt_storage(c10::StorageImpl& storage, c10::DeviceIndex device_index) {
  if (storage.device_type() == c10::DeviceType::PrivateUse1) return;
  c10::DataPtr& memory = storage._mutable_data_ptr_no_checks();
  if (C10_UNLIKELY(memory.get() == nullptr)) {  // empty, or torch's tensor of zeros without memory
    storage.set_data_ptr_noswap(
        c10::DataPtr(nullptr, c10::Device(c10::DeviceType::PrivateUse1, device_index)));
  } else if (C10_UNLIKELY(!is_adoptable(memory) || !adopt_as_npu(memory, device_index))) {
    const c10::DeviceIndex previous = exchange_device(device_index);
    c10::DataPtr fresh = device_allocator()->allocate(storage.nbytes());
    exchange_device(previous);
    device_allocator()->copy_data(fresh.get(), memory.get(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(fresh));
  }
  storage.set_allocator(device_allocator());
}

void adopt_tensor(const at::Tensor& tensor, c10::DeviceIndex device_index) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(static_cast<bool>(impl.unsafe_storage()))) {
    adopt_storage(*impl.unsafe_storage().unsafeGetStorageImpl(), device_index);
  } else if (!is_sparse(impl)) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "npu: the result of a host kernel must have memory, got dispatch keys ",
        impl.key_set(), ". Run this op on cpu. [alias-layout]");
  }
  if (!is_npu(tensor)) flip_keys(impl, device_index);
}

at::Tensor copy_to_npu(const at::Tensor& host, c10::DeviceIndex device_index) {
  at::Tensor copy;
  {
    const HostScope scope(device_index);
    copy = host.clone();
  }
  adopt_tensor(copy, device_index);
  return copy;
}

at::Tensor view_from_alias(const at::Tensor& base, const at::Tensor& host_view) {
  const c10::TensorImpl& shape = *host_view.unsafeGetTensorImpl();
  const DispatchKeySet keys = (base.key_set() - kViewBits) | (shape.key_set() & kViewBits);
  if (C10_UNLIKELY(shape.key_set().has(DispatchKey::Quantized))) {
    auto impl = c10::make_intrusive<at::QTensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.storage()), keys, shape.dtype(),
        static_cast<at::QTensorImpl*>(host_view.unsafeGetTensorImpl())->quantizer());
    impl->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
    return at::Tensor(std::move(impl));
  }
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), keys, shape.dtype());
  impl->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return at::Tensor(std::move(impl));
}

}  // namespace npu::ops
