// Events of the runtime for whoever listens: what ran where and when. Free when nobody listens (one
// relaxed load). The Python side is npu_runtime.observe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "npu/export.h"

namespace npu::observe {

namespace detail {
NPU_API extern std::atomic<int> listener_count;
}  // namespace detail

inline bool is_enabled() noexcept {
  return detail::listener_count.load(std::memory_order_relaxed) != 0;
}

// Nanoseconds since the Unix epoch, the clock of every event.
NPU_API std::int64_t now_ns() noexcept;

// Records a finished span. Categories in use: "program", "compile", "copy", "fallback", "alloc".
// `args_json` is the inside of a JSON object ("" for none), for example "\"bytes\": 64".
NPU_API void emit_span(std::string_view category, std::string_view name, std::int64_t start_ns,
                       std::int64_t end_ns, std::string args_json = {});

// Records the value of a counter, for example ("memory", "allocated_bytes", 4096).
NPU_API void emit_counter(std::string_view category, std::string_view name, double value);

}  // namespace npu::observe
