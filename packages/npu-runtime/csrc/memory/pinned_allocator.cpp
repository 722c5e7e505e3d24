// Pinned host memory: CPU tensors in memory that the device can use without a copy.
//
// Torch's caching host allocator caches freed blocks and keeps statistics; this file provides its
// memory (from a separate pool, pool.h), and decides when a freed block may be reused.
#include <ATen/core/CachingHostAllocator.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memory/free_block.h"
#include "memory/pool.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/process.h"
#include "npu/stream.h"

namespace npu::memory {
namespace {

struct EventDeleter {
  void operator()(npu_event* event) const noexcept { destroy_event(event); }
};

// The point in a stream after which a freed block may be reused.
struct Use {
  c10::Stream stream;
  std::unique_ptr<npu_event, EventDeleter> event;  // null if the driver could not record one
};

using HostBlock = at::HostBlock<c10::Stream>;

// Adds the time of a scope, in microseconds, to a statistic.
class Timed {
 public:
  Timed(std::mutex& mutex, at::DurationStat& stat) : mutex_(mutex), stat_(stat) {}
  ~Timed() {
    const auto spent = std::chrono::steady_clock::now() - start_;
    const std::lock_guard lock(mutex_);
    stat_.increase(std::chrono::duration_cast<std::chrono::microseconds>(spent).count());
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::mutex& mutex_;
  at::DurationStat& stat_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class PinnedBlocks final : public at::CachingHostAllocatorImpl<c10::Stream, Use, HostBlock> {
 public:
  std::pair<void*, void*> allocate(std::size_t bytes) override {
    check_process();
    return CachingHostAllocatorImpl::allocate(bytes);
  }

  void free(void* context) override {
    // Another thread of a forked child's parent may have held the locks.
    if (context == nullptr || is_in_bad_fork()) return;
    auto* host = static_cast<HostBlock*>(context);
    Block* block = block_of(host->ptr_);
    // Work was enqueued on the block through torch.npu.as_npu, and is pending.
    if (block->users.load(std::memory_order_acquire) > 1) {
      const std::lock_guard lock(host->mutex_);
      for (std::uint64_t rest = block->streams.load(); rest != 0; rest &= rest - 1) {
        host->streams_.insert(c10::Stream(
            c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, block->device_index),
            std::countr_zero(rest)));
      }
    }
    block->streams.store(0);
    delete block->attachment.exchange(nullptr);
    CachingHostAllocatorImpl::free(context);
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

 private:
  void allocate_host_memory(std::size_t size, void** address) override {
    const Timed timed(stats_.timing_mutex_, stats_.host_alloc_time);
    *address = allocate_pinned_block(size, current_device())->data();
  }

  void free_block(HostBlock* host) override {
    const Timed timed(stats_.timing_mutex_, stats_.host_free_time);
    memory::free_block(host->ptr_);
  }

  // Called while a pointer is freed, so it must not throw.
  void record_stream(std::optional<std::vector<Use>>& uses, c10::Stream stream) override {
    npu_event* event = nullptr;
    try {
      npu::record_event(&event, stream);
    } catch (const Error&) {
      destroy_event(std::exchange(event, nullptr));  // then checks whether the stream is idle
    }
    uses->push_back(Use{stream, std::unique_ptr<npu_event, EventDeleter>(event)});
  }

  bool query_event(Use& use) override {
    try {
      return use.event != nullptr ? is_event_done(use.event.get()) : is_idle(use.stream);
    } catch (const Error&) {
      return false;  // checked again at the next allocation
    }
  }

  c10::Stream get_current_stream() const override { return current_stream(); }
  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void free_pinned(void* context);

// A child forked after use has the parent's locks, and may not take them.
class PinnedMemory final : public at::CachingHostAllocatorInterface<PinnedBlocks, &free_pinned> {
 public:
  void empty_cache() override {
    check_process();
    CachingHostAllocatorInterface::empty_cache();
  }
  at::HostStats get_stats() override {
    check_process();
    return CachingHostAllocatorInterface::get_stats();
  }
  void reset_accumulated_stats() override {
    check_process();
    CachingHostAllocatorInterface::reset_accumulated_stats();
  }
  void reset_peak_stats() override {
    check_process();
    CachingHostAllocatorInterface::reset_peak_stats();
  }
};

// Never destroyed: pinned tensors of static objects are freed later.
PinnedMemory& pinned_memory() {
  static auto* instance = new PinnedMemory;
  return *instance;
}

void free_pinned(void* context) {
  pinned_memory().free(context);
}

}  // namespace
}  // namespace npu::memory

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &npu::memory::pinned_memory())
