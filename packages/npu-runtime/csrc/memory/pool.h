// The pool of one device: blocks that stay mapped when they are freed, with statistics in torch's
// shape.
//
// Pages that are already mapped are what makes large element-wise ops fast: the kernel need not
// fault and clear them again. Addresses come from arena.h, rounding is in size_class.h.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_set>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>

#include "memory/size_class.h"
#include "npu/allocator.h"
#include "npu/export.h"

namespace npu::memory {

class NPU_API Pool {
 public:
  explicit Pool(c10::DeviceIndex device_index);

  // A block of at least `bytes` (1 or more). Throws c10::OutOfMemoryError after the cache was
  // emptied and the allocation tried again.
  Block* allocate(std::size_t bytes);

  // Takes a block back. Its attachment must be gone, and its last user.
  void free(Block* block) noexcept;

  // Gives the pages of all free blocks back to the system.
  void empty_cache();

  // Never has more than this reserved; allocations beyond it are out of memory.
  void set_limit(std::size_t bytes);

  // Segments with their blocks, used and free, by address.
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot();

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();

  c10::DeviceIndex device_index() const noexcept { return device_index_; }
  std::size_t allocated_bytes() const noexcept { return allocated_now_; }
  std::size_t reserved_bytes() const noexcept { return reserved_now_; }

 private:
  struct Slab;

  Block* take_free(SizeClass size, bool is_small) noexcept;
  Block* carve_small(SizeClass size);
  Block* map_large(SizeClass size);
  Block* make_block(void* place, SizeClass size) const;
  void* commit(std::size_t bytes, std::size_t alignment, bool is_small);
  void release_large();
  void release_slabs();
  void decommit(void* address, std::size_t bytes, bool is_small) noexcept;
  void count_allocated(const Block& block, bool is_small) noexcept;
  [[noreturn]] void raise_out_of_memory(std::size_t bytes);

  const c10::DeviceIndex device_index_;
  const bool is_protected_;  // the driver protects memory, by whole blocks and so by whole pages
  std::mutex mutex_;
  std::vector<std::vector<Block*>> free_;  // by size class, last freed is first reused
  std::vector<Slab*> slabs_;
  std::unordered_set<Block*> large_;  // all large blocks, used and free
  std::size_t limit_bytes_;
  std::size_t allocated_now_ = 0;
  std::size_t reserved_now_ = 0;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// The pool of a device, made at first use. Throws npu::Error when no driver serves the device.
NPU_API Pool& pool(c10::DeviceIndex device_index);

struct MemoryInfo {
  std::size_t free_bytes;
  std::size_t total_bytes;
};

// What the machine has left, and in all: device memory is the machine's memory.
MemoryInfo machine_memory();

// Called when an allocation fails for good, without any lock, before the exception.
using OutOfMemoryObserver = void (*)(c10::DeviceIndex device_index, std::size_t bytes,
                                     std::size_t free_bytes);
NPU_API void set_out_of_memory_observer(OutOfMemoryObserver observer) noexcept;

}  // namespace npu::memory
