// Events of the runtime for listeners: work with its place, time and origin. Free without listeners
// (one relaxed load). Listeners are npu_runtime.observe in Python and torch's profiler
// (csrc/kineto).
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "npu/export.h"

namespace npu::observe {

namespace detail {
// One bit for each kind of active listener.
NPU_API extern std::atomic<unsigned> listeners;
NPU_API extern std::atomic<bool> are_kernels_wanted;
}  // namespace detail

inline bool is_enabled() noexcept {
  return detail::listeners.load(std::memory_order_relaxed) != 0;
}

// Whether a listener wants spans of "kernel", of which there is one per op.
inline bool are_kernels_wanted() noexcept {
  return detail::are_kernels_wanted.load(std::memory_order_relaxed);
}

// Nanoseconds since the Unix epoch, the clock of every event.
NPU_API std::int64_t now_ns() noexcept;

// Origin of work, with its time. Enqueued work carries it, because the thread that ends it differs
// from the one that requested it.
struct Origin {
  std::int64_t thread_id;       // of the operating system
  std::int64_t time_ns;         // time of the request
  std::uint64_t op_id;          // torch's number of the innermost op; 0 if ops are not counted
  std::uint64_t annotation_id;  // the same for record_function
  std::uint32_t work_id;        // number of this work
};

// The calling thread, now.
NPU_API Origin here() noexcept;

// A detail of an event. The key must be a literal: only its pointer is kept.
struct Arg {
  enum class Kind : std::uint8_t { kNumber, kFlag, kText };

  static Arg number(const char* key, std::int64_t value) { return {key, Kind::kNumber, value, {}}; }
  static Arg flag(const char* key, bool value) { return {key, Kind::kFlag, value ? 1 : 0, {}}; }
  static Arg text(const char* key, std::string_view value) { return {key, Kind::kText, 0, value}; }

  const char* key;
  Kind kind;
  std::int64_t value;
  std::string_view string;
};

constexpr std::size_t kMostArgs = 3;

// A finished span. Categories in use: "program" (a run), "launch" (enqueuing a run on a stream),
// "compile", "copy", "kernel" (an op's own kernel on the host), "fallback", "sync".
struct Span {
  std::string_view category;
  std::string_view name;
  std::int64_t start_ns;
  std::int64_t end_ns;
  c10::DeviceIndex device_index = -1;  // -1: without a device
  c10::StreamId stream = -1;
  const Origin* origin = nullptr;  // of enqueued work; otherwise it is the calling thread's
};

// Precondition: at most kMostArgs details.
NPU_API void emit_span(const Span& span, std::initializer_list<Arg> args = {});

inline void emit_span(std::string_view category, std::string_view name, std::int64_t start_ns,
                      std::int64_t end_ns, std::initializer_list<Arg> args = {}) {
  emit_span(Span{.category = category, .name = name, .start_ns = start_ns, .end_ns = end_ns}, args);
}

// Emits a span over its lifetime, if there was a listener at its start.
class ScopedSpan {
 public:
  ScopedSpan(std::string_view category, std::string_view name, c10::DeviceIndex device_index = -1,
             c10::StreamId stream = -1)
      : span_{.category = category,
              .name = name,
              .start_ns = is_enabled() ? now_ns() : 0,
              .end_ns = 0,
              .device_index = device_index,
              .stream = stream} {}
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;
  ~ScopedSpan() {
    if (span_.start_ns == 0) return;
    span_.end_ns = now_ns();
    emit_span(span_);
  }

 private:
  Span span_;
};

}  // namespace npu::observe
