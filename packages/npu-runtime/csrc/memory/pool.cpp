// Allocation in the regions of a pool, with limits, statistics and out-of-memory handling.
#include "memory/pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include "driver/device_selection.h"
#include "memory/arena.h"
#include "memory/page_owners.h"
#include "memory/trace.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/process.h"

namespace npu::memory {

namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

// Smaller requests do not check how much memory the system has.
constexpr std::size_t kCheckedBytes = std::size_t{64} << 20U;
constexpr c10::MempoolId_t kOwnRegion{0, 0};

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

// The thread's current region: the latest begin_region that has not ended. A list, because contexts
// nest and a graph's capture can begin inside one.
struct Route {
  Region* region;
  Route* below;
};

thread_local Route* routes = nullptr;

std::atomic<bool> is_caching_now{true};
std::atomic<OutOfMemoryObserver> out_of_memory_observer{nullptr};

std::string gigabytes(std::size_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GiB", static_cast<double>(bytes) / (1U << 30U));
  return text.data();
}

[[noreturn]] void raise_region(c10::MempoolId_t id, const char* rule) {
  throw Error(ErrorKind::kInput, "memory-pool",
              "npu: memory pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) +
                  ") " + rule);
}

}  // namespace

Pool::Pool(c10::DeviceIndex device_index, PoolKind kind)
    : device_index_(device_index),
      kind_(kind),
      is_protected_(driver::table().host_access_begin != nullptr),
      own_(*this, kOwnRegion),
      limit_bytes_(std::numeric_limits<std::size_t>::max()) {}

Block* Pool::allocate(std::size_t bytes) {
  const SizeClass size = size_class(is_protected_ ? std::max(bytes, kSmallLimit + 1) : bytes);
  {
    const std::lock_guard lock(mutex_);
    if (Block* block = size.index < kClasses ? find_block(size) : nullptr) {
      block->requested_bytes = bytes;
      block->streams.store(0, std::memory_order_relaxed);
      block->users.store(1, std::memory_order_relaxed);
      block->holds.store(1, std::memory_order_release);
      block->magic = kAllocatedMagic;
      count_allocated(*block, is_small(size));
      return block;
    }
    if (driver_error_.empty()) ++stats_.num_ooms;
  }
  raise_driver_error();
  raise_out_of_memory(bytes);
}

Block* Pool::find_block(SizeClass size) {
  Region& region = current_region();
  if (Block* block = region.take_free(size)) return block;
  if (Block* block = region.make(size)) return block;
  if (!driver_error_.empty()) return nullptr;
  release_unused();
  region.release_free();
  ++stats_.num_alloc_retries;
  if (Block* block = region.make(size)) return block;
  for (const auto& [id, other] : private_) {
    if (!other->is_last_resort) continue;
    if (Block* block = other->take_free(size)) return block;
  }
  return nullptr;
}

Region& Pool::current_region() noexcept {
  for (const Route* route = routes; route != nullptr; route = route->below) {
    if (&route->region->pool() == this) return *route->region;
  }
  return own_;
}

void Pool::free(Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  if (block->magic != kAllocatedMagic) {
    // Double free, or an overwritten header: reuse would spread the damage.
    std::fprintf(stderr,
                 "npu: a device block at %p was freed twice or overwritten; it is not reused\n",
                 block->data());
    return;
  }
  const bool is_small = block->size_class < kSmallClasses;
  block->magic = kFreeMagic;
  allocated_now_ -= block->size_bytes;
  decrease(stats_.allocation, is_small, 1);
  decrease(stats_.active, is_small, 1);
  decrease(stats_.allocated_bytes, is_small, block->size_bytes);
  decrease(stats_.active_bytes, is_small, block->size_bytes);
  decrease(stats_.requested_bytes, is_small, block->requested_bytes);
  Region& region = *block->region;
  region.put_back(block);
  const bool is_kept = region.users > 0 && is_device_memory() && is_caching();
  if (is_kept) return;
  region.release_free();
  if (region.users == 0 && region.is_empty()) private_.erase(region.id());
}

void Pool::empty_cache(c10::MempoolId_t id) {
  {
    const std::lock_guard lock(mutex_);
    if (id == kOwnRegion) {
      release_unused();
    } else if (const auto found = private_.find(id); found != private_.end()) {
      found->second->release_free();
    }
  }
  raise_driver_error();
}

// Private regions still in use for allocation keep theirs, as torch's pools do.
void Pool::release_unused() {
  own_.release_free();
}

void Pool::retain_region(c10::MempoolId_t id, bool is_last_resort) {
  const std::lock_guard lock(mutex_);
  auto& region = private_[id];
  if (region == nullptr) {
    region = std::make_unique<Region>(*this, id);
    region->is_last_resort = is_last_resort;
  } else {
    ++region->users;
  }
}

void Pool::release_region(c10::MempoolId_t id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = private_.find(id);
  if (found == private_.end() || found->second->users == 0) return;
  Region& region = *found->second;
  if (--region.users > 0) return;
  region.release_free();
  if (region.is_empty()) private_.erase(found);
}

int Pool::region_users(c10::MempoolId_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = private_.find(id);
  return found == private_.end() ? 0 : found->second->users;
}

void Pool::begin_region(c10::MempoolId_t id) {
  retain_region(id);
  const std::lock_guard lock(mutex_);
  routes = new Route{private_.at(id).get(), routes};
}

void Pool::end_region(c10::MempoolId_t id) {
  for (Route** link = &routes; *link != nullptr; link = &(*link)->below) {
    Route* route = *link;
    if (&route->region->pool() != this || route->region->id() != id) continue;
    *link = route->below;
    delete route;
    release_region(id);
    return;
  }
  raise_region(id, "must be in use on this thread; end one that this thread began.");
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

void* Pool::commit(std::size_t bytes, std::size_t alignment, bool is_small) {
  if (bytes > limit_bytes_ - std::min(limit_bytes_, reserved_now_)) return nullptr;
  if (bytes >= kCheckedBytes && bytes > machine_memory().free_bytes) return nullptr;
  void* address = arena_take(bytes, alignment);
  if (address == nullptr) return nullptr;
  const npu_status status = driver::table().memory_commit(device_index_, address, bytes);
  if (status != NPU_OK) {
    if (status != NPU_ERROR_MEMORY) note_driver_error("memory_commit");
    arena_return(address, bytes);
    return nullptr;
  }
  reserved_now_ += bytes;
  increase(stats_.segment, is_small, 1);
  increase(stats_.reserved_bytes, is_small, bytes);
  ++stats_.num_device_alloc;
  if (is_device_memory())
    trace::note_segment(trace::Action::kSegmentAlloc, address, bytes, device_index_);
  return address;
}

void Pool::decommit(void* address, std::size_t bytes, bool is_small) noexcept {
  clear_pages(address, bytes);
  if (driver::table().memory_decommit(device_index_, address, bytes) == NPU_OK) {
    arena_return(address, bytes);
  } else {
    // Addresses whose pages could not be freed are not reused.
    note_driver_error("memory_decommit");
  }
  reserved_now_ -= bytes;
  decrease(stats_.segment, is_small, 1);
  decrease(stats_.reserved_bytes, is_small, bytes);
  ++stats_.num_device_free;
  if (is_device_memory())
    trace::note_segment(trace::Action::kSegmentFree, address, bytes, device_index_);
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

std::vector<c10::CachingDeviceAllocator::SegmentInfo> Pool::snapshot(c10::MempoolId_t id) {
  using c10::CachingDeviceAllocator::SegmentInfo;
  std::vector<SegmentInfo> segments;
  {
    const std::lock_guard lock(mutex_);
    if (id == kOwnRegion) own_.append_snapshot(segments);
    for (const auto& [region_id, region] : private_) {
      if (id == kOwnRegion || id == region_id) region->append_snapshot(segments);
    }
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return segments;
}

void Pool::note_driver_error(const char* call) {
  if (!driver_error_.empty()) return;
  driver_error_ =
      std::string("npu: the driver's ") + call + " failed: " + driver::table().last_error() + ".";
}

void Pool::raise_driver_error() {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text.swap(driver_error_);
  }
  if (!text.empty()) throw Error(ErrorKind::kDriver, "driver-call", std::move(text));
}

void Pool::raise_out_of_memory(std::size_t bytes) {
  const MemoryInfo machine = machine_memory();
  const char* what = is_device_memory() ? "npu tensors" : "pinned tensors";
  if (is_device_memory()) {
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated_now_,
                                     reserved_now_,
                                     c10::Device(c10::DeviceType::PrivateUse1, device_index_));
    trace::note_out_of_memory(bytes, machine.free_bytes, device_index_);
    if (const auto observer = out_of_memory_observer.load()) {
      observer(device_index_, bytes, machine.free_bytes);
    }
  }
  std::ostringstream text;
  text << "npu: out of memory: tried to allocate " << gigabytes(bytes)
       << " on npu:" << int{device_index_} << ", which shares " << gigabytes(machine.total_bytes)
       << " with the host; " << gigabytes(machine.free_bytes) << " are free, "
       << gigabytes(allocated_now_) << " are held by " << what << " and "
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

bool is_caching() noexcept {
  return is_caching_now.load(std::memory_order_relaxed);
}

void set_caching(bool is_on) noexcept {
  is_caching_now.store(is_on, std::memory_order_relaxed);
}

c10::MempoolId_t new_region_id(bool is_graphs) {
  static std::atomic<unsigned long long> latest{0};
  const unsigned long long number = ++latest;
  return is_graphs ? c10::MempoolId_t{number, 0} : c10::MempoolId_t{0, number};
}

namespace {

using Pools = std::vector<std::unique_ptr<Pool>>;

Pool& pool_in(Pools& pools, c10::DeviceIndex device_index) {
  if (device_index < 0 || static_cast<std::size_t>(device_index) >= pools.size()) [[unlikely]]
    check_device(device_index);  // raises
  return *pools[static_cast<std::size_t>(device_index)];
}

// Never destroyed: tensors in static objects are freed later. The callers have opened the driver
// before, outside their static's lock: opening may run Python code.
Pools* make_pools(PoolKind kind) {
  auto* made = new Pools;
  mark_device_used();
  for (c10::DeviceIndex i = 0; i < device_count(); ++i)
    made->push_back(std::make_unique<Pool>(i, kind));
  return made;
}

}  // namespace

Pool& pool(c10::DeviceIndex device_index) {
  check_process();
  driver::table();  // throws the reason if there is no device
  static Pools* pools = make_pools(PoolKind::kDevice);
  return pool_in(*pools, device_index);
}

Pool& pinned_pool(c10::DeviceIndex device_index) {
  check_process();
  driver::table();  // throws the reason if there is no device
  static Pools* pools = make_pools(PoolKind::kPinned);
  return pool_in(*pools, device_index);
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
