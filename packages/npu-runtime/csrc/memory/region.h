// A region of a pool: segments whose blocks serve each other's requests, and nobody else's.
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

  // A block that was freed before; nullptr when there is none of this size.
  Block* take_free(SizeClass size) noexcept;

  // A block in new memory; nullptr when there is none to be had.
  Block* make(SizeClass size);

  void put_back(Block* block) noexcept;

  // Gives the pages of free blocks back to the system.
  void release_free();

  // The allocated block that holds an address inside a slab; nullptr when none does.
  static Block* find_small(const void* slab, const void* address) noexcept;

  void append_snapshot(std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments) const;

  bool is_empty() const noexcept { return slabs_.empty() && large_.empty(); }
  Pool& pool() const noexcept { return pool_; }
  c10::MempoolId_t id() const noexcept { return id_; }

  // Who may still allocate here. Without any, what is freed goes back to the system at once.
  int users = 1;
  // Whether free blocks here may serve a request of the pool that would be out of memory.
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
