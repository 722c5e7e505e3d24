// Decides whether a run is enqueued or synchronous.
//
// A pure function of facts; program.cpp collects these and applies the decision.
#pragma once

#include <cstdint>

namespace npu::program {

struct RunFacts {
  bool is_pooled;           // all memory is the pool's, so that pending work can keep it
  bool has_static_outputs;  // outputs can be allocated before the run
  bool is_stream_idle;
  bool is_launch_blocking;        // the user wants errors at their source
  std::int64_t mean_duration_ns;  // of earlier runs; 0 before the first
  std::int64_t inline_below_ns;   // the device's threshold
};

enum class Placement { kInline, kEnqueued };

// A synchronous run avoids the hand-over between threads, which costs more than short work. After
// pending work, a run must keep the order, so it is enqueued.
constexpr Placement place_run(const RunFacts& facts) {
  if (!facts.is_pooled || !facts.has_static_outputs || facts.is_launch_blocking)
    return Placement::kInline;
  if (!facts.is_stream_idle) return Placement::kEnqueued;
  return facts.mean_duration_ns >= facts.inline_below_ns ? Placement::kEnqueued
                                                         : Placement::kInline;
}

}  // namespace npu::program
