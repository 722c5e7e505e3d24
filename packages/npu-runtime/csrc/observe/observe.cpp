// The lists of records between native code, which may not hold Python's lock, and the listeners.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "npu/observe.h"
#include "observe/buffer.h"
#include "observe/names.h"
#include "observe/origin.h"

namespace npu::observe {

namespace detail {
std::atomic<unsigned> listeners{0};
std::atomic<bool> are_kernels_wanted{false};
}  // namespace detail

namespace {

// A listener that never drains must not fill the memory; what does not fit is counted.
constexpr std::size_t kMostRecords = 1U << 20U;
constexpr std::size_t kPieceRecords = 1024;
constexpr std::int64_t kSampleNs = 100'000;

std::atomic<bool> do_python_listeners_want_kernels{true};

// What a counter was, and where it was counted.
struct Point {
  std::int64_t ns;
  std::int64_t thread_id;
  double value;
};

// What one counter did since its latest record. Ops count memory twice each, so that between
// records only points are kept.
struct Counter {
  const std::string* category;
  const std::string* name;
  c10::DeviceIndex device_index;
  Point highest{};
  Point latest{};
  Point recorded{};
  bool has_latest = false;
};

struct Buffer {
  std::mutex mutex;
  Drained python;
  Drained kineto;
  std::vector<Counter> counters;
};

// Never destroyed: a thread may emit while the process ends.
std::atomic<Buffer*> instance{new Buffer};

Buffer& buffer() {
  return *instance.load(std::memory_order_acquire);
}

// Another thread of the parent may have held the lock, and what the parent saw is the parent's to
// tell: a forked child starts with a buffer of its own.
void start_anew() {
  instance.store(new Buffer, std::memory_order_release);
  forget_names();
}

void push(Drained& to, const Record& record) {
  if (to.records.size() < kMostRecords) {
    to.records.push(record);
  } else {
    ++to.dropped;
  }
}

bool is_listening(Listener listener) {
  return (detail::listeners.load(std::memory_order_relaxed) & listener) != 0;
}

Counter& counter_of(Buffer& in, std::string_view category, std::string_view name,
                    c10::DeviceIndex device_index) {
  for (Counter& counter : in.counters) {
    if (counter.device_index == device_index && *counter.name == name &&
        *counter.category == category) {
      return counter;
    }
  }
  in.counters.push_back(
      {.category = intern(category), .name = intern(name), .device_index = device_index});
  return in.counters.back();
}

void record(Drained& to, Counter& counter, const Point& point) {
  push(to, {.is_span = false,
            .is_enqueued = false,
            .arg_count = 0,
            .device_index = counter.device_index,
            .stream = -1,
            .category = counter.category,
            .name = counter.name,
            .start_ns = point.ns,
            .duration_ns = 0,
            .thread_id = point.thread_id,
            .value = point.value,
            .origin = {},
            .args = {}});
  counter.recorded = point;
}

// Records what a counter did in between: its highest value if that stands out, and its latest.
void settle(Drained& to, Counter& counter) {
  if (!std::exchange(counter.has_latest, false)) return;
  if (counter.highest.value > std::max(counter.recorded.value, counter.latest.value)) {
    record(to, counter, counter.highest);
  }
  record(to, counter, counter.latest);
}

void sample(Drained& to, Counter& counter, const Point& point) {
  if (point.ns - counter.recorded.ns >= kSampleNs) {
    settle(to, counter);
    record(to, counter, point);
    return;
  }
  if (!counter.has_latest || point.value > counter.highest.value) counter.highest = point;
  counter.latest = point;
  counter.has_latest = true;
}

// To be called with the buffer's lock, when what it depends on has changed.
void decide_on_kernels() {
  const bool are_wanted =
      is_listening(kKineto) || (is_listening(kPython) && do_python_listeners_want_kernels);
  detail::are_kernels_wanted.store(are_wanted, std::memory_order_relaxed);
}

}  // namespace

void RecordList::push(const Record& record) {
  if (pieces_.empty() || pieces_.back().size() == kPieceRecords) {
    pieces_.emplace_back().reserve(kPieceRecords);
  }
  pieces_.back().push_back(record);
  ++size_;
}

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void set_kernels_wanted(bool is_wanted) {
  const std::lock_guard lock(buffer().mutex);
  do_python_listeners_want_kernels = is_wanted;
  decide_on_kernels();
}

void emit_span(const Span& span, std::initializer_list<Arg> args) {
  if (!is_enabled()) return;
  const Origin emitter = origin_at(span.start_ns);
  Record record{.is_span = true,
                .is_enqueued = span.origin != nullptr,
                .arg_count = 0,
                .device_index = span.device_index,
                .stream = static_cast<std::int16_t>(span.stream),
                .category = intern(span.category),
                .name = intern(span.name),
                .start_ns = span.start_ns,
                .duration_ns = span.end_ns - span.start_ns,
                .thread_id = emitter.thread_id,
                .value = 0.0,
                .origin = span.origin != nullptr ? *span.origin : emitter,
                .args = {}};
  for (const Arg& arg : args) {
    if (record.arg_count == kMostArgs) break;
    record.args[record.arg_count++] = {arg.key, arg.kind, arg.value,
                                       arg.kind == Arg::Kind::kText ? intern(arg.string) : nullptr};
  }
  Buffer& to = buffer();
  const std::lock_guard lock(to.mutex);
  if (is_listening(kPython)) push(to.python, record);
  if (is_listening(kKineto)) push(to.kineto, record);
}

void emit_counter(std::string_view category, std::string_view name, double value,
                  c10::DeviceIndex device_index) {
  // torch's profiler hears of memory from torch itself.
  if (!is_listening(kPython)) return;
  const Point point{.ns = now_ns(), .thread_id = thread_id(), .value = value};
  Buffer& to = buffer();
  const std::lock_guard lock(to.mutex);
  if (!is_listening(kPython)) return;
  sample(to.python, counter_of(to, category, name, device_index), point);
}

void set_listening(Listener listener, bool is_on) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &start_anew);
  Buffer& of = buffer();
  const std::lock_guard lock(of.mutex);
  if (is_on == is_listening(listener)) return;
  detail::listeners.fetch_xor(listener, std::memory_order_relaxed);
  (listener == kPython ? of.python : of.kineto) = {};
  if (listener == kPython) of.counters.clear();
  decide_on_kernels();
}

Drained drain(Listener listener) {
  Buffer& from = buffer();
  const std::lock_guard lock(from.mutex);
  if (listener == kPython) {
    for (Counter& counter : from.counters)
      settle(from.python, counter);
  }
  return std::exchange(listener == kPython ? from.python : from.kineto, {});
}

}  // namespace npu::observe
