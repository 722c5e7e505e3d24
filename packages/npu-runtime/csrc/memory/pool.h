// The pool of one device: blocks that stay mapped when they are freed, with statistics in torch's
// shape.
//
// Pages that are already mapped are what makes large element-wise ops fast: the kernel need not
// fault and clear them again. Blocks are made and kept in regions (region.h), addresses come from
// arena.h, rounding is in size_class.h.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>

#include "memory/region.h"
#include "npu/allocator.h"
#include "npu/export.h"

namespace npu::memory {

// Marks the header of a block that nobody holds.
inline constexpr std::uint32_t kFreeMagic = 0x4e50'5546;

enum class PoolKind {
  kDevice,
  kPinned,  // CPU tensors in device memory; torch's host allocator keeps what is freed, not the
            // pool
};

class NPU_API Pool {
 public:
  Pool(c10::DeviceIndex device_index, PoolKind kind);

  // A block of at least `bytes` (1 or more) from the region in which this thread allocates. Throws
  // c10::OutOfMemoryError after the cache was emptied and the allocation tried again.
  Block* allocate(std::size_t bytes);

  // Takes a block back. Its attachment must be gone, and its last user.
  void free(Block* block) noexcept;

  // Gives the pages of free blocks back to the system: those of one private region, or with {0, 0}
  // all of the pool's own. Throws Error [driver-call] when the driver could not take some of them.
  void empty_cache(c10::MempoolId_t id = {0, 0});

  // Never has more than this reserved; allocations beyond it are out of memory.
  void set_limit(std::size_t bytes);

  // A private region, made when it is first named, lives until each retain has its release and no
  // block of it is in use.
  void retain_region(c10::MempoolId_t id, bool is_last_resort = false);
  void release_region(c10::MempoolId_t id) noexcept;
  int region_users(c10::MempoolId_t id);

  // From here on this thread allocates in a private region; ends with the matching end_region.
  void begin_region(c10::MempoolId_t id);
  void end_region(c10::MempoolId_t id);

  // Segments with their blocks, used and free, by address: all of them, or those of one region.
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot(c10::MempoolId_t id = {0, 0});

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();

  c10::DeviceIndex device_index() const noexcept { return device_index_; }
  bool is_device_memory() const noexcept { return kind_ == PoolKind::kDevice; }
  // Whether the driver protects memory: by whole blocks, and so by whole pages.
  bool is_protected() const noexcept { return is_protected_; }
  std::size_t allocated_bytes() const noexcept { return allocated_now_; }
  std::size_t reserved_bytes() const noexcept { return reserved_now_; }

 private:
  friend class Region;

  Region& current_region() noexcept;
  Block* find_block(SizeClass size);
  void release_unused();
  void* commit(std::size_t bytes, std::size_t alignment, bool is_small);
  void decommit(void* address, std::size_t bytes, bool is_small) noexcept;
  void count_allocated(const Block& block, bool is_small) noexcept;
  void note_driver_error(const char* call);
  void raise_driver_error();
  [[noreturn]] void raise_out_of_memory(std::size_t bytes);

  const c10::DeviceIndex device_index_;
  const PoolKind kind_;
  const bool is_protected_;
  std::mutex mutex_;
  Region own_;
  std::map<c10::MempoolId_t, std::unique_ptr<Region>> private_;
  std::size_t limit_bytes_;
  std::size_t allocated_now_ = 0;
  std::size_t reserved_now_ = 0;
  std::string driver_error_;  // of a call that failed for another reason than too little memory
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// The pools of a device, made at first use. Throw npu::Error when no driver serves the device, and
// in a child that was forked after use.
NPU_API Pool& pool(c10::DeviceIndex device_index);
NPU_API Pool& pinned_pool(c10::DeviceIndex device_index);

// An id for a private region, unlike all before: {n, 0} for a graph's own, {0, n} for one that
// a user made, as torch numbers them.
NPU_API c10::MempoolId_t new_region_id(bool is_graphs);

// Whether freed blocks are kept for the next request; on from the start.
NPU_API bool is_caching() noexcept;
NPU_API void set_caching(bool is_on) noexcept;

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
