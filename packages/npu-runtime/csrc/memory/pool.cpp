// The pool's two regions: slabs of small blocks, and large blocks of whole pages.
#include "memory/pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <sstream>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include "driver/choice.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/process.h"

namespace npu::memory {

namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr std::uint32_t kFreeMagic = 0x4e50'5546;
constexpr std::size_t kSlabBytes = std::size_t{1} << 20U;
// Below this a request is not worth asking the system how much memory it has.
constexpr std::size_t kCheckedBytes = std::size_t{64} << 20U;

StatType stat_type(bool is_small) {
  return is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
}

void increase(StatArray& stat, bool is_small, std::size_t amount) {
  stat[static_cast<std::size_t>(StatType::AGGREGATE)].increase(amount);
  stat[static_cast<std::size_t>(stat_type(is_small))].increase(amount);
}

void decrease(StatArray& stat, bool is_small, std::size_t amount) {
  stat[static_cast<std::size_t>(StatType::AGGREGATE)].decrease(amount);
  stat[static_cast<std::size_t>(stat_type(is_small))].decrease(amount);
}

template <typename Function>
void for_each_stat(c10::CachingDeviceAllocator::DeviceStats& stats, Function function) {
  for (StatArray* array : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes,
                           &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array)
      function(stat);
  }
}

bool is_small_block(const Block& block) {
  return block.size_class < kSmallClasses;
}

// A large block's header sits at the end of a page of its own, so that the data begins on a page.
void* large_base(Block* block) {
  return static_cast<char*>(block->data()) - kPage;
}

std::atomic<OutOfMemoryObserver> out_of_memory_observer{nullptr};

std::string gigabytes(std::size_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GiB", static_cast<double>(bytes) / (1U << 30U));
  return text.data();
}

}  // namespace

// Stands at the start of its own memory, which is aligned to kSlabBytes, so a block finds it by
// masking.
struct alignas(64) Pool::Slab {
  std::size_t used_bytes;
  std::size_t live_blocks;

  static Slab* of(Block* block) {
    return reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(block) & ~(kSlabBytes - 1));
  }
};

Pool::Pool(c10::DeviceIndex device_index)
    : device_index_(device_index),
      is_protected_(driver::table().host_access_begin != nullptr),
      free_(kClasses),
      limit_bytes_(std::numeric_limits<std::size_t>::max()) {}

Block* Pool::allocate(std::size_t bytes) {
  const SizeClass size = size_class(is_protected_ ? std::max(bytes, kSmallLimit + 1) : bytes);
  const bool is_small = size.index < kSmallClasses;
  {
    const std::lock_guard lock(mutex_);
    Block* block = nullptr;
    if (size.index < kClasses) {
      block = take_free(size, is_small);
      if (block == nullptr) block = is_small ? carve_small(size) : map_large(size);
      if (block == nullptr) {
        release_large();
        release_slabs();
        ++stats_.num_alloc_retries;
        block = is_small ? carve_small(size) : map_large(size);
      }
    }
    if (block != nullptr) {
      block->requested_bytes = bytes;
      block->streams.store(0, std::memory_order_relaxed);
      block->users.store(1, std::memory_order_relaxed);
      block->holds.store(1, std::memory_order_release);
      block->magic = kAllocatedMagic;
      count_allocated(*block, is_small);
      return block;
    }
    ++stats_.num_ooms;
  }
  raise_out_of_memory(bytes);
}

void Pool::free(Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  if (block->magic != kAllocatedMagic) {
    // Freed twice, or its header overwritten: reusing it would spread the damage.
    std::fprintf(stderr,
                 "npu: a device block at %p was freed twice or overwritten; it is not reused\n",
                 block->data());
    return;
  }
  const bool is_small = is_small_block(*block);
  block->magic = kFreeMagic;
  allocated_now_ -= block->size_bytes;
  decrease(stats_.allocation, is_small, 1);
  decrease(stats_.active, is_small, 1);
  decrease(stats_.allocated_bytes, is_small, block->size_bytes);
  decrease(stats_.active_bytes, is_small, block->size_bytes);
  decrease(stats_.requested_bytes, is_small, block->requested_bytes);
  if (is_small) --Slab::of(block)->live_blocks;
  free_[block->size_class].push_back(block);
}

void Pool::empty_cache() {
  const std::lock_guard lock(mutex_);
  release_large();
  release_slabs();
}

c10::CachingDeviceAllocator::DeviceStats Pool::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Pool::reset_accumulated_stats() {
  const std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
}

void Pool::reset_peak_stats() {
  const std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](auto& stat) { stat.reset_peak(); });
}

Block* Pool::take_free(SizeClass size, bool is_small) noexcept {
  auto& list = free_[size.index];
  if (list.empty()) return nullptr;
  Block* block = list.back();
  list.pop_back();
  if (is_small) ++Slab::of(block)->live_blocks;
  return block;
}

Block* Pool::carve_small(SizeClass size) {
  const std::size_t bytes = sizeof(Block) + size.bytes;
  if (slabs_.empty() || slabs_.back()->used_bytes + bytes > kSlabBytes) {
    void* memory = commit(kSlabBytes, kSlabBytes, true);
    if (memory == nullptr) return nullptr;
    slabs_.push_back(new (memory) Slab{sizeof(Slab), 0});
  }
  Slab* slab = slabs_.back();
  void* place = reinterpret_cast<char*>(slab) + slab->used_bytes;
  slab->used_bytes += bytes;
  ++slab->live_blocks;
  return make_block(place, size);
}

Block* Pool::map_large(SizeClass size) {
  void* memory = commit(size.bytes + kPage, kPage, false);
  if (memory == nullptr) return nullptr;
  // The header's page is the runtime's own, for as long as the block is mapped.
  if (is_protected_ && driver::table().host_access_begin(device_index_, memory, kPage) != NPU_OK) {
    decommit(memory, size.bytes + kPage, false);
    return nullptr;
  }
  Block* block = make_block(static_cast<char*>(memory) + kPage - sizeof(Block), size);
  large_.insert(block);
  return block;
}

Block* Pool::make_block(void* place, SizeClass size) const {
  auto* block = new (place) Block;
  block->size_bytes = size.bytes;
  block->device_index = device_index_;
  block->size_class = size.index;
  block->magic = kFreeMagic;
  return block;
}

void* Pool::commit(std::size_t bytes, std::size_t alignment, bool is_small) {
  if (bytes > limit_bytes_ - std::min(limit_bytes_, reserved_now_)) return nullptr;
  if (bytes >= kCheckedBytes && bytes > machine_memory().free_bytes) return nullptr;
  void* address = arena_take(bytes, alignment);
  if (address == nullptr) return nullptr;
  if (driver::table().memory_commit(device_index_, address, bytes) != NPU_OK) {
    arena_return(address, bytes);
    return nullptr;
  }
  reserved_now_ += bytes;
  increase(stats_.segment, is_small, 1);
  increase(stats_.reserved_bytes, is_small, bytes);
  ++stats_.num_device_alloc;
  return address;
}

void Pool::decommit(void* address, std::size_t bytes, bool is_small) noexcept {
  // Addresses whose pages could not be given back are not handed out again.
  if (driver::table().memory_decommit(device_index_, address, bytes) == NPU_OK)
    arena_return(address, bytes);
  reserved_now_ -= bytes;
  decrease(stats_.segment, is_small, 1);
  decrease(stats_.reserved_bytes, is_small, bytes);
  ++stats_.num_device_free;
}

void Pool::release_large() {
  for (std::size_t index = kSmallClasses; index < free_.size(); ++index) {
    for (Block* block : free_[index]) {
      large_.erase(block);
      void* base = large_base(block);
      const std::size_t bytes = block->size_bytes + kPage;
      // From here on the header is out of reach.
      if (is_protected_) driver::table().host_access_end(device_index_, base, kPage);
      decommit(base, bytes, false);
    }
    free_[index].clear();
  }
}

void Pool::release_slabs() {
  const auto is_unused = [](Block* block) { return Slab::of(block)->live_blocks == 0; };
  for (std::size_t index = 0; index < kSmallClasses; ++index)
    std::erase_if(free_[index], is_unused);
  std::erase_if(slabs_, [this](Slab* slab) {
    if (slab->live_blocks != 0) return false;
    decommit(slab, kSlabBytes, true);
    return true;
  });
}

void Pool::count_allocated(const Block& block, bool is_small) noexcept {
  allocated_now_ += block.size_bytes;
  increase(stats_.allocation, is_small, 1);
  increase(stats_.active, is_small, 1);
  increase(stats_.allocated_bytes, is_small, block.size_bytes);
  increase(stats_.active_bytes, is_small, block.size_bytes);
  increase(stats_.requested_bytes, is_small, block.requested_bytes);
}

void Pool::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_bytes_ = bytes;
}

std::vector<c10::CachingDeviceAllocator::SegmentInfo> Pool::snapshot() {
  using c10::CachingDeviceAllocator::SegmentInfo;
  std::vector<SegmentInfo> segments;
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
    segment.device = device_index_;
    segment.address = reinterpret_cast<std::size_t>(address);
    segment.total_size = bytes;
    segment.is_large = is_large;
    return segment;
  };
  const std::lock_guard lock(mutex_);
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
  std::sort(segments.begin(), segments.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return segments;
}

void Pool::raise_out_of_memory(std::size_t bytes) {
  const MemoryInfo machine = machine_memory();
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated_now_, reserved_now_,
                                   c10::Device(c10::DeviceType::PrivateUse1, device_index_));
  if (const auto observer = out_of_memory_observer.load()) {
    observer(device_index_, bytes, machine.free_bytes);
  }
  std::ostringstream text;
  text << "npu: out of memory: tried to allocate " << gigabytes(bytes)
       << " on npu:" << int{device_index_} << ", which shares " << gigabytes(machine.total_bytes)
       << " with the host; " << gigabytes(machine.free_bytes) << " are free, "
       << gigabytes(allocated_now_) << " are held by npu tensors and "
       << gigabytes(reserved_now_ - allocated_now_)
       << " are cached by the pool, after it was emptied.";
  if (limit_bytes_ != std::numeric_limits<std::size_t>::max()) {
    text << " set_per_process_memory_fraction allows " << gigabytes(limit_bytes_) << ".";
  }
  text << " Use smaller batches or shapes, or free tensors that are no longer needed. "
          "[out-of-memory]";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

void set_out_of_memory_observer(OutOfMemoryObserver observer) noexcept {
  out_of_memory_observer.store(observer);
}

Pool& pool(c10::DeviceIndex device_index) {
  check_process();
  // Never destroyed: tensors that live in static objects are freed after it would be.
  static auto* pools = [] {
    auto* made = new std::vector<std::unique_ptr<Pool>>;
    driver::table();  // says why when there is no device
    mark_device_used();
    for (c10::DeviceIndex i = 0; i < device_count(); ++i)
      made->push_back(std::make_unique<Pool>(i));
    return made;
  }();
  if (device_index < 0 || static_cast<std::size_t>(device_index) >= pools->size()) {
    throw Error(ErrorKind::kDevice, "device-index",
                "npu: device index " + std::to_string(device_index) +
                    " does not exist; there are " + std::to_string(pools->size()) +
                    " npu devices, numbered from 0. Use \"npu:0\".");
  }
  return *(*pools)[static_cast<std::size_t>(device_index)];
}

MemoryInfo machine_memory() {
  MemoryInfo info{0, 0};
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return info;
  std::array<char, 256> line{};
  unsigned long long kilobytes = 0;
  while (std::fgets(line.data(), line.size(), file) != nullptr) {
    if (std::sscanf(line.data(), "MemTotal: %llu", &kilobytes) == 1)
      info.total_bytes = kilobytes << 10U;
    if (std::sscanf(line.data(), "MemAvailable: %llu", &kilobytes) == 1)
      info.free_bytes = kilobytes << 10U;
  }
  std::fclose(file);
  return info;
}

}  // namespace npu::memory
