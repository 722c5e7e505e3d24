// Which block or slab each page of the arena belongs to, so that a block is found from any address
// inside it and not from its first alone.
//
// Storages over a part of a block are what DLPack and slices of storages make. What a block is
// stands in npu/allocator.h, who allocates them in pool.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {
struct Block;
}

namespace npu::memory {

// Reserves the table for an arena: a word for each page, of which only used ones take memory. False
// when the system refuses the addresses.
bool reserve_page_owners(std::uintptr_t arena_begin, std::size_t arena_bytes);

// The pages of [address, address + bytes) belong to one large block, to one slab of small blocks,
// or to nobody.
void set_block_pages(const void* address, std::size_t bytes, Block* block) noexcept;
void set_slab_pages(const void* slab, std::size_t bytes) noexcept;
void clear_pages(const void* address, std::size_t bytes) noexcept;

struct PageOwner {
  Block* block = nullptr;      // of a large block's page
  const void* slab = nullptr;  // of a slab's page
};

// Precondition: `address` lies in the arena.
PageOwner page_owner(const void* address) noexcept;

}  // namespace npu::memory
