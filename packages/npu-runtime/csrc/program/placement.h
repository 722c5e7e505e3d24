// Whether a run is enqueued or done on the calling thread.
//
// A pure decision from facts: program.cpp gathers them and carries the decision out.
#pragma once

#include <cstdint>

namespace npu::program {

struct RunFacts {
  bool is_pooled;  // all memory is the pool's, so that it can be kept while the work is pending
  bool has_static_outputs;  // outputs can be allocated before the run
  bool is_stream_idle;
  bool is_launch_blocking;        // the user wants errors where they arise
  std::int64_t mean_duration_ns;  // of earlier runs; 0 when there was none
  std::int64_t inline_below_ns;   // the device's threshold
};

enum class Placement { kInline, kEnqueued };

// A run in line costs no hand-over between threads, which for short work is more than the work.
// Behind work that is pending a run must keep the order, so it is enqueued whatever it costs.
constexpr Placement place_run(const RunFacts& facts) {
  if (!facts.is_pooled || !facts.has_static_outputs || facts.is_launch_blocking)
    return Placement::kInline;
  if (!facts.is_stream_idle) return Placement::kEnqueued;
  return facts.mean_duration_ns >= facts.inline_below_ns ? Placement::kEnqueued
                                                         : Placement::kInline;
}

}  // namespace npu::program
