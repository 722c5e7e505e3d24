// Which op of torch a thread is in, while a profiler counts them. torch's profiler tells when one
// begins and ends (csrc/kineto); observe::here() reads it.
#pragma once

#include <cstdint>

#include "npu/observe.h"

namespace npu::observe {

enum class Scope { kOp, kAnnotation };

// A new window of profiling: what threads were in before no longer counts.
void begin_window() noexcept;

void enter(Scope scope, std::uint64_t id) noexcept;
void leave(Scope scope) noexcept;

// A number that no other piece of work of this process has, and no op of torch's. Fits an int32.
std::uint32_t next_work_id() noexcept;

// The operating system's number of the calling thread.
std::int64_t thread_id() noexcept;

// The calling thread, for work that it asked for at `time_ns`.
Origin origin_at(std::int64_t time_ns) noexcept;

}  // namespace npu::observe
