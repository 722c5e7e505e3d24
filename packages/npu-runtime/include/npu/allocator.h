// Device memory: the pool behind every npu tensor, and how CPU kernels write straight into it.
//
// Device memory is page-aligned host memory inside one reserved range of addresses (the arena), so
// a block is recognized by a range test and a CPU kernel can run on the same bytes. Each block
// carries a header in front of its data; the header has one slot that npu-ops uses to cache the CPU
// alias of the block. Drivers, which turn addresses into device memory, are in driver.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include "npu/export.h"

namespace npu {

namespace memory {
class Region;
}

// A value that another layer attaches to a block. It lives as long as the block is allocated: the
// pool deletes it, outside its lock, just before the block becomes free.
struct NPU_API BlockAttachment {
  virtual ~BlockAttachment();
};

// Marks the header of an allocated block.
inline constexpr std::uint32_t kAllocatedMagic = 0x4e50'5541;

// Header of an allocated block. `data()` follows it directly; c10::DataPtr::get_context() of a
// tensor's memory is equal to its get(), the address of the data.
struct alignas(64) Block {
  std::size_t size_bytes = 0;       // usable bytes behind data()
  std::size_t requested_bytes = 0;  // before rounding
  std::atomic<BlockAttachment*> attachment{nullptr};
  std::atomic<std::uint64_t> streams{0};  // ids of streams that have used the block, one bit each
  std::atomic<std::uint32_t> users{0};    // the owner, and each piece of pending work on the block
  std::atomic<std::uint32_t> holds{0};    // one for all users together, and each open host window
  std::int16_t device_index = 0;
  std::uint16_t size_class = 0;
  std::uint32_t magic = 0;
  bool is_host_owned = false;        // belongs to a CPU tensor, with a separate window
  memory::Region* region = nullptr;  // of the pool that created it, while it is mapped

  void* data() noexcept { return this + 1; }
};
static_assert(sizeof(Block) == 64);

// The allocator of DeviceType::PrivateUse1. Its deleter, and the deleter of PoolScope's CPU memory,
// is free_block; both accept any address of the arena.
NPU_API c10::DeviceAllocator* device_allocator() noexcept;

// True if `ptr` is in the arena (device memory of any npu device).
NPU_API bool owns(const void* ptr) noexcept;

// Header of the allocated block that contains the address `data`, at its start or inside (a storage
// over a part of it), or nullptr.
NPU_API Block* block_of(const void* data) noexcept;

// While one is alive on a thread, torch's CPU allocator takes this thread's memory from the npu
// pool, so that a CPU kernel's result can become an npu tensor without a copy. Nests.
class NPU_API PoolScope {
 public:
  explicit PoolScope(c10::DeviceIndex device_index) noexcept;
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// Converts PoolScope's memory from a CPU pointer to an npu pointer (device and deleter; the bytes
// stay). Returns false without changes if the memory is not the pool's.
NPU_API bool adopt_as_npu(c10::DataPtr& memory, c10::DeviceIndex device_index) noexcept;

}  // namespace npu
