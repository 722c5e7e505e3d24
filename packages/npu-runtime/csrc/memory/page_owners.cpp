// The table: the address of the owner, with the lowest bit set for a slab. Both are aligned to 64
// bytes at least.
#include "memory/page_owners.h"

#include <sys/mman.h>

#include <atomic>

#include "memory/size_class.h"

namespace npu::memory {

namespace {

using Entry = std::atomic<std::uintptr_t>;
static_assert(sizeof(Entry) == sizeof(std::uintptr_t), "pages of zeros must be empty entries");

constexpr std::uintptr_t kSlabBit = 1;

Entry* entries = nullptr;
std::uintptr_t first_address = 0;

Entry& entry_of(const void* address) noexcept {
  return entries[(reinterpret_cast<std::uintptr_t>(address) - first_address) / kPage];
}

void set_pages(const void* address, std::size_t bytes, std::uintptr_t value) noexcept {
  Entry* entry = &entry_of(address);
  for (std::size_t page = 0; page < bytes / kPage; ++page)
    entry[page].store(value, std::memory_order_release);
}

}  // namespace

bool reserve_page_owners(std::uintptr_t arena_begin, std::size_t arena_bytes) {
  void* table = mmap(nullptr, arena_bytes / kPage * sizeof(Entry), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) return false;
  entries = static_cast<Entry*>(table);
  first_address = arena_begin;
  return true;
}

void set_block_pages(const void* address, std::size_t bytes, Block* block) noexcept {
  set_pages(address, bytes, reinterpret_cast<std::uintptr_t>(block));
}

void set_slab_pages(const void* slab, std::size_t bytes) noexcept {
  set_pages(slab, bytes, reinterpret_cast<std::uintptr_t>(slab) | kSlabBit);
}

void clear_pages(const void* address, std::size_t bytes) noexcept {
  set_pages(address, bytes, 0);
}

PageOwner page_owner(const void* address) noexcept {
  const std::uintptr_t value = entry_of(address).load(std::memory_order_acquire);
  if ((value & kSlabBit) != 0) return {nullptr, reinterpret_cast<const void*>(value & ~kSlabBit)};
  return {reinterpret_cast<Block*>(value), nullptr};
}

}  // namespace npu::memory
