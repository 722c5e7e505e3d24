// The buffer between native code, which may not hold Python's lock, and the listeners in Python.
#include "npu/observe.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "observe_buffer.h"

namespace npu::observe {

namespace detail {
std::atomic<int> listener_count{0};
}  // namespace detail

namespace {

// A listener that never drains must not fill the memory; what does not fit is counted.
constexpr std::size_t kMostEvents = 1U << 20U;

struct Buffer {
  std::mutex mutex;
  std::vector<NativeEvent> events;
  std::size_t dropped = 0;
};

std::atomic<Buffer*> instance{new Buffer};

Buffer& buffer() {
  return *instance.load(std::memory_order_acquire);
}

// Another thread of the parent may have held the lock, and what the parent saw is the parent's to
// tell: a forked child starts with a buffer of its own.
void replace_buffer() {
  instance.store(new Buffer, std::memory_order_release);
}

std::int64_t thread_id() {
  thread_local const auto id = static_cast<std::int64_t>(syscall(SYS_gettid));
  return id;
}

void append(NativeEvent event) {
  Buffer& to = buffer();
  const std::lock_guard lock(to.mutex);
  if (to.events.size() < kMostEvents) {
    to.events.push_back(std::move(event));
  } else {
    ++to.dropped;
  }
}

}  // namespace

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void emit_span(std::string_view category, std::string_view name, std::int64_t start_ns,
               std::int64_t end_ns, std::string args_json) {
  if (!is_enabled()) return;
  append({true, std::string(category), std::string(name), start_ns, end_ns - start_ns, thread_id(),
          0.0, std::move(args_json)});
}

void emit_counter(std::string_view category, std::string_view name, double value) {
  if (!is_enabled()) return;
  append({false, std::string(category), std::string(name), now_ns(), 0, thread_id(), value, {}});
}

Drained drain() {
  Buffer& from = buffer();
  const std::lock_guard lock(from.mutex);
  return {std::exchange(from.events, {}), std::exchange(from.dropped, 0)};
}

void set_listener_count(int count) noexcept {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &replace_buffer);
  detail::listener_count.store(count, std::memory_order_relaxed);
}

}  // namespace npu::observe
