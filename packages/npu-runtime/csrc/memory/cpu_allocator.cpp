// torch's CPU allocator with one exception: inside a PoolScope, memory comes from the npu pool.
//
// Outside a scope every call goes to the allocator that was there before. A CPU allocator must give
// all its memory one deleter (c10::Allocator::raw_deleter), so that deleter distinguishes the two
// by address.
#include <c10/core/CPUAllocator.h>

#include "memory/arena.h"
#include "memory/free_block.h"
#include "npu/allocator.h"

namespace npu {

namespace {

thread_local c10::DeviceIndex scope_device = -1;

c10::Allocator* base = nullptr;
c10::DeleterFnPtr base_deleter = nullptr;

void free_any(void* data) {
  if (memory::arena_contains(data)) {
    memory::free_block(data);
  } else {
    base_deleter(data);
  }
}

class ScopedCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (scope_device < 0 || bytes == 0) {
      c10::DataPtr memory = base->allocate(bytes);
      // A pointer of another allocator below keeps its own deleter.
      static_cast<void>(memory.compare_exchange_deleter(base_deleter, &free_any));
      return memory;
    }
    void* data = memory::allocate_host_block(bytes, scope_device)->data();
    return {data, data, &free_any, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

ScopedCpuAllocator scoped_allocator;

// Torch registers its own with priority 0. An allocator without a raw deleter cannot be wrapped;
// then CPU kernels' results are copied into device memory instead of adopted (npu-ops supports
// both).
bool wrap_cpu_allocator() {
  base = c10::GetCPUAllocator();
  base_deleter = base->raw_deleter();
  if (base_deleter != nullptr) c10::SetCPUAllocator(&scoped_allocator, 1);
  return base_deleter != nullptr;
}

}  // namespace

// Wraps at the first scope, so that programs without npu tensors keep torch's allocator. Other
// threads may be allocating: they read the old or the new pointer, and both work.
PoolScope::PoolScope(c10::DeviceIndex device_index) noexcept : previous_(scope_device) {
  [[maybe_unused]] static const bool is_wrapped = wrap_cpu_allocator();
  scope_device = device_index;
}

PoolScope::~PoolScope() {
  scope_device = previous_;
}

}  // namespace npu
