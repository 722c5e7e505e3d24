// A region of a pool: segments with blocks that are reused only within the region.
//
// Each pool has one of its own; torch.npu.MemPool and captured graphs add private ones. Every call
// is made under the pool's lock; limits and statistics are the pool's (pool.h).
#pragma once

#include <cstddef>
#include <unordered_set>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>

#include "memory/size_class.h"
#include "npu/allocator.h"

namespace npu::memory {

class Pool;

class Region {
 public:
  Region(Pool& pool, c10::MempoolId_t id);

  // A cached block of this size, or nullptr.
  Block* take_free(SizeClass size) noexcept;

  // A block in new memory; nullptr if memory is exhausted.
  Block* make(SizeClass size);

  void put_back(Block* block) noexcept;

  // Returns the pages of free blocks to the system.
  void release_free();

  // The allocated block that contains an address inside a slab, or nullptr.
  static Block* find_small(const void* slab, const void* address) noexcept;

  void append_snapshot(std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments) const;

  bool is_empty() const noexcept { return slabs_.empty() && large_.empty(); }
  Pool& pool() const noexcept { return pool_; }
  c10::MempoolId_t id() const noexcept { return id_; }

  // References of users that may allocate here. Without any, freed memory goes back to the system
  // at once.
  int users = 1;
  // Whether free blocks here may satisfy a request of the pool that would be out of memory.
  bool is_last_resort = false;

 private:
  struct Slab;

  Block* carve_small(SizeClass size);
  Block* map_large(SizeClass size);
  Block* make_block(void* place, SizeClass size);
  void release_large();
  void release_slabs();

  Pool& pool_;
  const c10::MempoolId_t id_;
  std::vector<std::vector<Block*>> free_;  // by size class, last freed is first reused
  std::vector<Slab*> slabs_;
  std::unordered_set<Block*> large_;  // all large blocks, used and free
};

inline bool is_small(SizeClass size) noexcept {
  return size.index < kSmallClasses;
}

}  // namespace npu::memory
