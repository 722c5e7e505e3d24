// Slabs of small blocks, and large blocks of whole pages.
#include "memory/region.h"

#include <new>

#include "driver/device_selection.h"
#include "memory/page_owners.h"
#include "memory/pool.h"

namespace npu::memory {

namespace {

constexpr std::size_t kSlabBytes = std::size_t{1} << 20U;

// A large block's header is at the end of a separate page, so that the data begins on a page.
void* large_base(Block* block) {
  return static_cast<char*>(block->data()) - kPage;
}

}  // namespace

// At the start of its memory, which is aligned to kSlabBytes, so that masking a block's address
// finds it.
struct alignas(64) Region::Slab {
  std::size_t used_bytes;
  std::size_t live_blocks;

  static Slab* of(Block* block) {
    return reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(block) & ~(kSlabBytes - 1));
  }
};

Region::Region(Pool& pool, c10::MempoolId_t id) : pool_(pool), id_(id), free_(kClasses) {}

Block* Region::take_free(SizeClass size) noexcept {
  auto& list = free_[size.index];
  if (list.empty()) return nullptr;
  Block* block = list.back();
  list.pop_back();
  if (is_small(size)) ++Slab::of(block)->live_blocks;
  return block;
}

Block* Region::make(SizeClass size) {
  return is_small(size) ? carve_small(size) : map_large(size);
}

void Region::put_back(Block* block) noexcept {
  if (block->size_class < kSmallClasses) --Slab::of(block)->live_blocks;
  free_[block->size_class].push_back(block);
}

void Region::release_free() {
  release_large();
  release_slabs();
}

Block* Region::carve_small(SizeClass size) {
  const std::size_t bytes = sizeof(Block) + size.bytes;
  if (slabs_.empty() || slabs_.back()->used_bytes + bytes > kSlabBytes) {
    void* memory = pool_.commit(kSlabBytes, kSlabBytes, true);
    if (memory == nullptr) return nullptr;
    slabs_.push_back(new (memory) Slab{sizeof(Slab), 0});
    set_slab_pages(memory, kSlabBytes);
  }
  Slab* slab = slabs_.back();
  void* place = reinterpret_cast<char*>(slab) + slab->used_bytes;
  slab->used_bytes += bytes;
  ++slab->live_blocks;
  return make_block(place, size);
}

Block* Region::map_large(SizeClass size) {
  void* memory = pool_.commit(size.bytes + kPage, kPage, false);
  if (memory == nullptr) return nullptr;
  // The header's page belongs to the runtime while the block is mapped.
  if (pool_.is_protected()) {
    const npu_status status =
        driver::table().host_access_begin(pool_.device_index(), memory, kPage);
    if (status != NPU_OK) {
      if (status != NPU_ERROR_MEMORY) pool_.note_driver_error("host_access_begin");
      pool_.decommit(memory, size.bytes + kPage, false);
      return nullptr;
    }
  }
  Block* block = make_block(static_cast<char*>(memory) + kPage - sizeof(Block), size);
  large_.insert(block);
  set_block_pages(memory, size.bytes + kPage, block);
  return block;
}

Block* Region::make_block(void* place, SizeClass size) {
  auto* block = new (place) Block;
  block->size_bytes = size.bytes;
  block->device_index = pool_.device_index();
  block->size_class = size.index;
  block->region = this;
  block->magic = kFreeMagic;
  return block;
}

void Region::release_large() {
  for (std::size_t index = kSmallClasses; index < free_.size(); ++index) {
    for (Block* block : free_[index]) {
      large_.erase(block);
      void* base = large_base(block);
      const std::size_t bytes = block->size_bytes + kPage;
      // From here on the header is inaccessible.
      if (pool_.is_protected()) driver::table().host_access_end(pool_.device_index(), base, kPage);
      pool_.decommit(base, bytes, false);
    }
    free_[index].clear();
  }
}

void Region::release_slabs() {
  const auto is_unused = [](Block* block) { return Slab::of(block)->live_blocks == 0; };
  for (std::size_t index = 0; index < kSmallClasses; ++index)
    std::erase_if(free_[index], is_unused);
  std::erase_if(slabs_, [this](Slab* slab) {
    if (slab->live_blocks != 0) return false;
    pool_.decommit(slab, kSlabBytes, true);
    return true;
  });
}

Block* Region::find_small(const void* slab, const void* address) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(slab);
  const auto target = reinterpret_cast<std::uintptr_t>(address);
  // The usual address is the start of a block, after the header.
  if (target % alignof(Block) == 0 && target - begin > sizeof(Block)) {
    Block* block = static_cast<Block*>(const_cast<void*>(address)) - 1;
    if (block->magic == kAllocatedMagic) return block;
  }
  // Blocks are contiguous, and those before an allocated one do not change.
  for (std::uintptr_t place = begin + sizeof(Slab);
       place + sizeof(Block) <= target && place + sizeof(Block) <= begin + kSlabBytes;) {
    auto* block = reinterpret_cast<Block*>(place);
    if (block->size_bytes == 0) return nullptr;
    place += sizeof(Block) + block->size_bytes;
    if (target < place) return block->magic == kAllocatedMagic ? block : nullptr;
  }
  return nullptr;
}

void Region::append_snapshot(
    std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments) const {
  using c10::CachingDeviceAllocator::SegmentInfo;
  const auto add_block = [](SegmentInfo& segment, const Block& block) {
    const bool is_used = block.magic == kAllocatedMagic;
    segment.blocks.push_back({.size = block.size_bytes,
                              .requested_size = is_used ? block.requested_bytes : 0,
                              .gc_counter = 0,
                              .allocated = is_used,
                              .active = is_used,
                              .context_when_allocated = nullptr});
    if (!is_used) return;
    segment.allocated_size += block.size_bytes;
    segment.active_size += block.size_bytes;
    segment.requested_size += block.requested_bytes;
  };
  const auto add_segment = [&](const void* address, std::size_t bytes,
                               bool is_large) -> SegmentInfo& {
    SegmentInfo& segment = segments.emplace_back();
    segment.device = pool_.device_index();
    segment.address = reinterpret_cast<std::size_t>(address);
    segment.total_size = bytes;
    segment.is_large = is_large;
    segment.owner_private_pool_id = id_;
    return segment;
  };
  for (Slab* slab : slabs_) {
    SegmentInfo& segment = add_segment(slab, kSlabBytes, false);
    for (std::size_t offset = sizeof(Slab); offset < slab->used_bytes;) {
      const auto& block = *reinterpret_cast<Block*>(reinterpret_cast<char*>(slab) + offset);
      add_block(segment, block);
      offset += sizeof(Block) + block.size_bytes;
    }
  }
  for (Block* block : large_) {
    add_block(add_segment(large_base(block), block->size_bytes + kPage, true), *block);
  }
}

}  // namespace npu::memory
