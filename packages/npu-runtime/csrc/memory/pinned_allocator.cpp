// Pinned host memory: CPU tensors in memory that the device can use without a copy, which here is
// the pool.
#include <ATen/core/CachingHostAllocator.h>

#include "memory/free_block.h"
#include "memory/pool.h"
#include "npu/device.h"

namespace npu::memory {
namespace {

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    void* data = allocate_host_block(bytes, current_device())->data();
    return {data, data, &free_block, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

  // No work is pending once the call that started it has returned.
  bool record_event(void*, void*, c10::Stream) override { return true; }

  // Pinned blocks are blocks of the device's pool: its statistics and its cache are theirs.
  void empty_cache() override { device_allocator()->emptyCache(); }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedMemory pinned_memory;

}  // namespace
}  // namespace npu::memory

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &npu::memory::pinned_memory)
