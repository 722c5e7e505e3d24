// Maps each page of the arena to its block or slab, to find a block from any address inside it.
//
// DLPack and slices of storages create storages over a part of a block. Blocks are declared in
// npu/allocator.h and allocated in pool.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {
struct Block;
}

namespace npu::memory {

// Reserves the table of an arena: a word per page, committed on use. False if the system refuses
// the addresses.
bool reserve_page_owners(std::uintptr_t arena_begin, std::size_t arena_bytes);

// The pages of [address, address + bytes) belong to one large block, to one slab of small blocks,
// or to none.
void set_block_pages(const void* address, std::size_t bytes, Block* block) noexcept;
void set_slab_pages(const void* slab, std::size_t bytes) noexcept;
void clear_pages(const void* address, std::size_t bytes) noexcept;

struct PageOwner {
  Block* block = nullptr;      // of a large block's page
  const void* slab = nullptr;  // of a slab's page
};

// Precondition: `address` is in the arena.
PageOwner page_owner(const void* address) noexcept;

}  // namespace npu::memory
