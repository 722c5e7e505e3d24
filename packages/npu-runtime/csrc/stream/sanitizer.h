// The stream sanitizer: finds programs that use memory of another stream's program without
// synchronization.
//
// It tracks the order by vector clocks, so it also finds races without effect in this run. Host
// code needs no check, because it always waits. Costs one load when off.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu {

struct Block;

namespace stream {
class StreamState;
}

namespace sanitizer {

namespace detail {
NPU_API extern std::atomic<bool> enabled;
}  // namespace detail

inline bool is_enabled() noexcept {
  return detail::enabled.load(std::memory_order_relaxed);
}

// Starts without history.
NPU_API void set_enabled(bool is_on);

// A program is about to run on the stream. Throws Error [stream-race], with the Python stacks of
// both sides.
void on_program(const stream::StreamState& stream, const std::string& name,
                const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes);

void on_event_record(const npu_event* event, const stream::StreamState& stream);
void on_event_wait(const npu_event* event, const stream::StreamState& stream);
void on_event_synchronize(const npu_event* event);
void on_event_destroy(const npu_event* event);
void on_stream_synchronize(const stream::StreamState& stream);

// Host code has waited for the work on a block.
void on_host_access(const Block& block);

// The block's memory is returned to the pool, which drops its history.
void on_free(const Block& block);

}  // namespace sanitizer
}  // namespace npu
