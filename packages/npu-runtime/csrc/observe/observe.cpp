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
}  // namespace detail

namespace {

// A listener that never drains must not fill the memory; what does not fit is counted.
constexpr std::size_t kMostRecords = 1U << 20U;
constexpr std::size_t kPieceRecords = 1024;
constexpr std::int64_t kSampleNs = 100'000;

std::atomic<bool> are_kernels_wanted{true};

// What one counter did since its latest record.
struct Sampled {
  Record latest;
  Record highest;
  std::int64_t recorded_ns = 0;
  double recorded_value = 0;
  bool has_latest = false;
};

struct Buffer {
  std::mutex mutex;
  Drained python;
  Drained kineto;
  std::vector<Sampled> counters;
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

Sampled& counter_of(Buffer& in, const Record& record) {
  for (Sampled& counter : in.counters) {
    const Record& known = counter.latest;
    if (known.name == record.name && known.category == record.category &&
        known.device_index == record.device_index) {
      return counter;
    }
  }
  in.counters.push_back({.latest = record, .highest = record});
  return in.counters.back();
}

// Records what a counter did in between: its highest value if that stands out, and its latest.
void settle(Drained& to, Sampled& counter) {
  if (!std::exchange(counter.has_latest, false)) return;
  if (counter.highest.value > std::max(counter.recorded_value, counter.latest.value)) {
    push(to, counter.highest);
  }
  push(to, counter.latest);
  counter.recorded_ns = counter.latest.start_ns;
  counter.recorded_value = counter.latest.value;
}

void sample(Buffer& in, const Record& record) {
  Sampled& counter = counter_of(in, record);
  if (record.start_ns - counter.recorded_ns >= kSampleNs) {
    settle(in.python, counter);
    push(in.python, record);
    counter.recorded_ns = record.start_ns;
    counter.recorded_value = record.value;
    return;
  }
  if (!counter.has_latest || record.value > counter.highest.value) counter.highest = record;
  counter.latest = record;
  counter.has_latest = true;
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

void set_kernels_wanted(bool is_wanted) noexcept {
  are_kernels_wanted.store(is_wanted, std::memory_order_relaxed);
}

void emit_span(const Span& span, std::initializer_list<Arg> args) {
  if (!is_enabled()) return;
  if (!are_kernels_wanted.load(std::memory_order_relaxed) && !is_listening(kKineto) &&
      span.category == "kernel") {
    return;
  }
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
  const Origin emitter = here();
  const Record record{.is_span = false,
                      .is_enqueued = false,
                      .arg_count = 0,
                      .device_index = device_index,
                      .stream = -1,
                      .category = intern(category),
                      .name = intern(name),
                      .start_ns = emitter.time_ns,
                      .duration_ns = 0,
                      .thread_id = emitter.thread_id,
                      .value = value,
                      .origin = emitter,
                      .args = {}};
  Buffer& to = buffer();
  const std::lock_guard lock(to.mutex);
  if (is_listening(kPython)) sample(to, record);
}

void set_listening(Listener listener, bool is_on) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &start_anew);
  Buffer& of = buffer();
  const std::lock_guard lock(of.mutex);
  if (is_on == is_listening(listener)) return;
  detail::listeners.fetch_xor(listener, std::memory_order_relaxed);
  (listener == kPython ? of.python : of.kineto) = {};
  if (listener == kPython) of.counters.clear();
}

Drained drain(Listener listener) {
  Buffer& from = buffer();
  const std::lock_guard lock(from.mutex);
  if (listener == kPython) {
    for (Sampled& counter : from.counters)
      settle(from.python, counter);
  }
  return std::exchange(listener == kPython ? from.python : from.kineto, {});
}

}  // namespace npu::observe
