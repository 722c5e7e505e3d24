// The pool of one device: freed blocks stay mapped; statistics have torch's format.
//
// Mapped pages make large element-wise ops fast: the kernel does not fault and clear them again.
// Regions create and cache blocks (region.h), addresses come from arena.h, rounding is in
// size_class.h.
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

// Marks the header of a free block.
inline constexpr std::uint32_t kFreeMagic = 0x4e50'5546;

enum class PoolKind {
  kDevice,
  kPinned,  // CPU tensors in device memory; torch's host allocator keeps what is freed, not the
            // pool
};

class NPU_API Pool {
 public:
  Pool(c10::DeviceIndex device_index, PoolKind kind);

  // A block of at least `bytes` (1 or more) from this thread's current region. Throws
  // c10::OutOfMemoryError after emptying the cache and trying again.
  Block* allocate(std::size_t bytes);

  // Frees a block. Its attachment and its last reference must be gone.
  void free(Block* block) noexcept;

  // Returns the pages of free blocks to the system: of a private region, or with {0, 0} of the
  // pool's own. Throws Error [driver-call] if the driver could not free some of them.
  void empty_cache(c10::MempoolId_t id = {0, 0});

  // Limits reserved memory; allocations beyond it are out of memory.
  void set_limit(std::size_t bytes);

  // A private region, created on first use, lives until each retain has its release and no block of
  // it is in use.
  void retain_region(c10::MempoolId_t id, bool is_last_resort = false);
  void release_region(c10::MempoolId_t id) noexcept;
  int region_users(c10::MempoolId_t id);

  // Makes this thread allocate in a private region until the matching end_region.
  void begin_region(c10::MempoolId_t id);
  void end_region(c10::MempoolId_t id);

  // Segments with their blocks, used and free, by address: of all regions, or of one.
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot(c10::MempoolId_t id = {0, 0});

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();

  c10::DeviceIndex device_index() const noexcept { return device_index_; }
  bool is_device_memory() const noexcept { return kind_ == PoolKind::kDevice; }
  // Whether the driver protects memory: by whole blocks, and therefore by whole pages.
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
  std::string driver_error_;  // of a call that failed for another reason than low memory
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// The pools of a device, created at first use. Throw npu::Error without a driver, and in a child
// forked after use.
NPU_API Pool& pool(c10::DeviceIndex device_index);
NPU_API Pool& pinned_pool(c10::DeviceIndex device_index);

// A new id of a private region: {n, 0} for a graph's, {0, n} for one created by a user, in torch's
// numbering.
NPU_API c10::MempoolId_t new_region_id(bool is_graphs);

// Whether freed blocks are cached; initially on.
NPU_API bool is_caching() noexcept;
NPU_API void set_caching(bool is_on) noexcept;

struct MemoryInfo {
  std::size_t free_bytes;
  std::size_t total_bytes;
};

// The machine's free and total memory: device memory is the machine's memory.
MemoryInfo machine_memory();

// Called without locks when an allocation finally fails, before the exception.
using OutOfMemoryObserver = void (*)(c10::DeviceIndex device_index, std::size_t bytes,
                                     std::size_t free_bytes);
NPU_API void set_out_of_memory_observer(OutOfMemoryObserver observer) noexcept;

}  // namespace npu::memory
