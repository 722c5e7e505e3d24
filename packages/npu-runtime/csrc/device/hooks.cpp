// The hooks: torch's device functions other than tensor ops.
#include <algorithm>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include "npu/allocator.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/generator.h"

namespace npu {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return device_count() > 0; }
  void init() const override { check_device(current_device()); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device_index) const override { set_device(device_index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device_index) const override {
    return exchange_device(device_index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device_index) const override {
    return device_index < 0 ? current_device() : exchange_device(device_index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device_index) const override {
    return default_generator(device_index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device_index) const override {
    return make_generator(device_index);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    const Block* block = block_of(data);
    if (block == nullptr) {
      throw Error(ErrorKind::kInput, "not-device-memory",
                  "npu: the pointer must be npu memory, got other memory. Pass the data_ptr() of "
                  "an npu tensor's storage.");
    }
    return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(block->device_index)};
  }

  // Called for CPU tensors only: the device can use a tensor in the arena directly.
  bool isPinnedPtr(const void* data) const override { return owns(data); }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return at::getHostAllocator(c10::DeviceType::PrivateUse1);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t new_bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(
        impl->resizable(),
        "npu: a storage must own its memory to be resized, got a view. Clone it. [storage-view]");
    const c10::DeviceIndex previous = exchange_device(impl->device().index());
    c10::DataPtr moved;
    try {
      moved = device_allocator()->allocate(new_bytes);
    } catch (...) {
      exchange_device(previous);
      throw;
    }
    exchange_device(previous);
    const std::size_t kept = std::min(new_bytes, impl->nbytes());
    if (kept != 0) device_allocator()->copy_data(moved.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(moved));
    impl->set_nbytes(new_bytes);
  }
};

[[maybe_unused]] const bool is_registered = [] {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
  return true;
}();

}  // namespace
}  // namespace npu
