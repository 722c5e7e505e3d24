// Device memory for torch: the allocator of PrivateUse1, ownership in the block header, and
// PoolScope's hand-over from CPU to npu. pool.cpp allocates blocks.
#include <algorithm>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>

#include "driver/device_selection.h"
#include "memory/arena.h"
#include "memory/free_block.h"
#include "memory/page_owners.h"
#include "memory/pool.h"
#include "memory/region.h"
#include "memory/trace.h"
#include "npu/allocator.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/host_access.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "observe/counter.h"
#include "stream/sanitizer.h"
#include "stream/stream_state.h"

namespace npu {

BlockAttachment::~BlockAttachment() = default;

namespace memory {

namespace {

// For allocated bytes on a device.
observe::Counter& counter(c10::DeviceIndex device_index) {
  static const auto* const all = [] {
    auto* const made = new std::vector<std::unique_ptr<observe::Counter>>;
    for (c10::DeviceIndex i = 0; i < device_count(); ++i)
      made->push_back(std::make_unique<observe::Counter>("memory", "allocated_bytes", i));
    return made;
  }();
  return *(*all)[static_cast<std::size_t>(device_index)];
}

// Reports `bytes` allocated (freed if negative) at `data` to profilers and observers. Called after
// the pool has counted them, so that the totals agree.
void report(void* data, std::int64_t bytes, const Pool& from) {
  if (!from.is_device_memory()) return;  // pinned memory has separate statistics
  const c10::Device device(c10::DeviceType::PrivateUse1, from.device_index());
  c10::reportMemoryUsageToProfiler(data, bytes, from.allocated_bytes(), from.reserved_bytes(),
                                   device);
  if (observe::is_enabled())
    counter(from.device_index()).set(static_cast<double>(from.allocated_bytes()));
}

}  // namespace

namespace {

Block* allocate_from(Pool& from, std::size_t bytes) {
  Block* block = from.allocate(bytes);
  report(block->data(), static_cast<std::int64_t>(block->size_bytes), from);
  if (trace::is_recording() && from.is_device_memory()) trace::record_allocation(*block);
  return block;
}

}  // namespace

Block* allocate_block(std::size_t bytes, c10::DeviceIndex device_index) {
  return allocate_from(pool(device_index), bytes);
}

namespace {

// The last hold returns the block to its pool.
void drop_hold(Block* block) noexcept {
  if (block->holds.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Pool& from = block->region->pool();
  if (trace::is_recording() && from.is_device_memory()) trace::record_free(*block);
  sanitizer::on_free(*block);
  void* data = block->data();
  const auto bytes = static_cast<std::int64_t>(block->size_bytes);
  from.free(block);
  report(data, -bytes, from);
}

void end_host_ownership(Block* block) noexcept {
  if (!block->is_host_owned) return;
  block->is_host_owned = false;
  close_window(block);
}

}  // namespace

Block* allocate_host_block(std::size_t bytes, c10::DeviceIndex device_index) {
  Block* block = allocate_block(bytes, device_index);
  block->is_host_owned = open_window(block);
  return block;
}

Block* allocate_pinned_block(std::size_t bytes, c10::DeviceIndex device_index) {
  Block* block = allocate_from(pinned_pool(device_index), bytes);
  block->is_host_owned = open_window(block);
  return block;
}

void free_block(void* data) {
  // A forked child touches no block: its parent's threads may have held the pool's lock at the
  // fork, and with shared memory the headers still belong to the parent.
  if (data == nullptr || is_in_bad_fork()) return;
  // Not block_of: the pool itself reports an overwritten header.
  Block* block = static_cast<Block*>(data) - 1;
  // The attachment is deleted first and outside the pool's lock: its destructor may free other
  // memory.
  delete block->attachment.exchange(nullptr, std::memory_order_acq_rel);
  end_host_ownership(block);
  drop_user(block);
}

void drop_user(Block* block) noexcept {
  if (block->users.fetch_sub(1, std::memory_order_acq_rel) == 1) drop_hold(block);
}

bool open_window(Block* block) {
  const npu_driver& driver = driver::table();
  if (driver.host_access_begin == nullptr) return false;
  driver::check_call(
      driver.host_access_begin(block->device_index, block->data(), block->size_bytes),
      "host_access_begin");
  block->holds.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void close_window(Block* block) noexcept {
  if (is_in_bad_fork()) return;
  // A window that cannot be closed leaves memory accessible, which is harmless.
  static_cast<void>(
      driver::table().host_access_end(block->device_index, block->data(), block->size_bytes));
  drop_hold(block);
}

namespace {

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::DeviceType::PrivateUse1, current_device());
    if (bytes == 0) {
      pool(device.index());  // an empty tensor on an absent device is still an error
      return {nullptr, nullptr, &free_block, device};
    }
    void* data = allocate_block(bytes, device.index())->data();
    return {data, data, &free_block, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    const HostAccess to(dest);
    const HostAccess from(src);
    default_copy_data(dest, src, count);
  }

  bool initialized() override { return device_count() > 0; }

  void emptyCache(c10::MempoolId_t id) override {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i)
      pool(i).empty_cache(id);
  }

  // Pending work holds every block it uses, on any stream, so nothing is recorded here. Marking the
  // stream makes host code that uses the block receive the stream's errors.
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    if (Block* block = block_of(memory.get())) {
      block->streams.fetch_or(stream::state_of(stream).bit(), std::memory_order_acq_rel);
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device_index) override {
    return pool(device_index).stats();
  }

  void resetAccumulatedStats(c10::DeviceIndex device_index) override {
    pool(device_index).reset_accumulated_stats();
  }

  void resetPeakStats(c10::DeviceIndex device_index) override {
    pool(device_index).reset_peak_stats();
  }

  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device_index) override {
    const MemoryInfo machine = machine_memory();
    Pool& from = pool(device_index);
    const std::size_t cached = from.reserved_bytes() - from.allocated_bytes();
    return {std::min(machine.free_bytes + cached, machine.total_bytes), machine.total_bytes};
  }
};

DeviceMemory device_memory;

// Registration of PrivateUse1's allocator when the library is loaded, which importing npu_runtime
// does.
[[maybe_unused]] const bool is_registered = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &device_memory);
  return true;
}();

}  // namespace
}  // namespace memory

c10::DeviceAllocator* device_allocator() noexcept {
  return &memory::device_memory;
}

bool owns(const void* ptr) noexcept {
  return memory::arena_contains(ptr);
}

Block* block_of(const void* data) noexcept {
  if (!memory::arena_contains(data)) return nullptr;
  const memory::PageOwner owner = memory::page_owner(data);
  if (owner.slab != nullptr) return memory::Region::find_small(owner.slab, data);
  if (owner.block == nullptr || data < owner.block->data()) return nullptr;
  return owner.block->magic == kAllocatedMagic ? owner.block : nullptr;
}

bool adopt_as_npu(c10::DataPtr& pointer, c10::DeviceIndex device_index) noexcept {
  if (pointer.get() != pointer.get_context()) return false;
  if (pointer.get() != nullptr && !owns(pointer.get())) return false;
  void* data = pointer.release_context();
  // Its context is its start, so the header is before it.
  if (data != nullptr) memory::end_host_ownership(static_cast<Block*>(data) - 1);
  pointer = c10::DataPtr(data, data, &memory::free_block,
                         c10::Device(c10::DeviceType::PrivateUse1, device_index));
  return true;
}

}  // namespace npu
