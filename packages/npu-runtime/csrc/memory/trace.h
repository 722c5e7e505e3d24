// Who allocated what: Python stacks of live blocks, recorded on request for snapshots and the leak
// report.
#pragma once

#include <atomic>
#include <cstddef>
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
}  // namespace detail

inline bool is_recording() noexcept {
  return detail::recording.load(std::memory_order_relaxed);
}

// Starts or stops; stopping forgets what was recorded.
NPU_API void set_recording(bool is_on);

void record_allocation(const Block& block);
void record_free(const Block& block);

struct LiveBlock {
  std::size_t address;
  std::size_t requested_bytes;
  std::int16_t device_index;
  std::shared_ptr<torch::CapturedTraceback> stack;  // null when it could not be taken
};

// Blocks that were allocated while recording and are still in use, oldest first.
NPU_API std::vector<LiveBlock> live_blocks();

}  // namespace npu::memory::trace
