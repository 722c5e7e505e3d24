// Allocation traces: Python stacks of live blocks, and the history of the pools' actions, recorded
// on request for snapshots and the leak report.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "npu/allocator.h"
#include "npu/export.h"

namespace torch {
struct CapturedTraceback;
}

namespace npu::memory::trace {

namespace detail {
NPU_API extern std::atomic<bool> recording;
NPU_API extern std::atomic<bool> keeps_history;
}  // namespace detail

inline bool is_recording() noexcept {
  return detail::recording.load(std::memory_order_relaxed);
}

inline bool has_history() noexcept {
  return detail::keeps_history.load(std::memory_order_relaxed);
}

// Starts or stops; stopping drops the record.
NPU_API void set_recording(bool is_on);

// While recording, keeps the latest `most` actions; 0 keeps none. Drops earlier ones.
NPU_API void set_history(std::size_t most);

void record_allocation(const Block& block);
void record_free(const Block& block);

struct LiveBlock {
  std::size_t address;
  std::size_t requested_bytes;
  std::int16_t device_index;
  std::shared_ptr<torch::CapturedTraceback> stack;  // null if it could not be captured
};

// Blocks allocated during the recording and still in use, oldest first.
NPU_API std::vector<LiveBlock> live_blocks();

enum class Action { kAlloc, kFree, kSegmentAlloc, kSegmentFree, kOutOfMemory };

struct Entry {
  Action action;
  std::size_t address;  // of an out of memory: free bytes of the machine
  std::size_t bytes;
  std::int16_t device_index;
  std::int64_t time_us;                             // since the Unix epoch
  std::shared_ptr<torch::CapturedTraceback> stack;  // of an allocation, if available
};

// The history, oldest first.
NPU_API std::vector<Entry> history();

void note_segment(Action action, const void* address, std::size_t bytes, std::int16_t device_index);
void note_out_of_memory(std::size_t bytes, std::size_t free_bytes, std::int16_t device_index);

}  // namespace npu::memory::trace
