// The current torch op of a thread, while a profiler counts ops. torch's profiler reports its begin
// and end (csrc/kineto); observe::here() reads it.
#pragma once

#include <cstdint>

#include "npu/observe.h"

namespace npu::observe {

enum class Scope { kOp, kAnnotation };

// Starts a new window of profiling: earlier ops and annotations of threads are dropped.
void begin_window() noexcept;

void enter(Scope scope, std::uint64_t id) noexcept;
void leave(Scope scope) noexcept;

// A number unique among the process's work and torch's ops. Fits an int32.
std::uint32_t next_work_id() noexcept;

// The OS id of the calling thread.
std::int64_t thread_id() noexcept;

// The calling thread, for work requested at `time_ns`.
Origin origin_at(std::int64_t time_ns) noexcept;

}  // namespace npu::observe
