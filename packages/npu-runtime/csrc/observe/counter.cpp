#include "observe/counter.h"

#include <algorithm>
#include <vector>

#include "npu/observe.h"
#include "observe/names.h"
#include "observe/origin.h"

namespace npu::observe {

namespace {

constexpr std::int64_t kSampleNs = 100'000;

// With the buffer's lock. Never destroyed, as the counters are not.
std::vector<Counter*>& counters() {
  static auto* const all = new std::vector<Counter*>;
  return *all;
}

}  // namespace

Counter::Counter(const char* category, const char* name, c10::DeviceIndex device_index)
    : category_(category), name_(name), device_index_(device_index) {
  with_python_records([this](Drained*) { counters().push_back(this); });
}

void Counter::begin() {
  due_.store(0, std::memory_order_relaxed);
  has_latest_.store(false, std::memory_order_relaxed);
  recorded_ = {};
  first_ticks_ = 0;
}

void Counter::sample(double value, Ticks now) {
  with_python_records([&](Drained* to) {
    if (to == nullptr) return;
    const std::int64_t ns = now_ns();
    if (ns - recorded_.ns < kSampleNs) {
      if (value > highest_.load(std::memory_order_relaxed)) {
        highest_.store(value, std::memory_order_relaxed);
        highest_ns_ = ns;
      }
      latest_.store(value, std::memory_order_relaxed);
      has_latest_.store(true, std::memory_order_relaxed);
      return;
    }
    settle(*to, ns);
    record(*to, {value, ns});
    highest_.store(value, std::memory_order_relaxed);
    if (first_ticks_ == 0) {
      first_ticks_ = now;
      first_ns_ = ns;
    }
    due_.store(due_after(now, ns), std::memory_order_relaxed);
  });
}

void Counter::settle(Drained& to, std::int64_t now_ns) {
  if (!has_latest_.exchange(false, std::memory_order_relaxed)) return;
  const double latest = latest_.load(std::memory_order_relaxed);
  const double highest = highest_.exchange(latest, std::memory_order_relaxed);
  const std::int64_t end_ns = std::min(now_ns, recorded_.ns + kSampleNs);
  if (highest > std::max(recorded_.value, latest)) record(to, {highest, highest_ns_});
  record(to, {latest, end_ns});
}

void Counter::record(Drained& to, const Point& point) {
  to.push({.is_span = false,
           .is_enqueued = false,
           .arg_count = 0,
           .device_index = device_index_,
           .stream = -1,
           .category = intern(category_),
           .name = intern(name_),
           .start_ns = point.ns,
           .duration_ns = 0,
           .thread_id = thread_id(),
           .value = point.value,
           .origin = {},
           .args = {}});
  recorded_ = point;
}

Ticks Counter::due_after(Ticks now, std::int64_t now_ns) const {
  const std::int64_t known_ns = now_ns - first_ns_;
  if (known_ns < kSampleNs) return now;  // too short to measure a tick
  const double ticks_per_ns =
      static_cast<double>(now - first_ticks_) / static_cast<double>(known_ns);
  return now + static_cast<Ticks>(ticks_per_ns * static_cast<double>(kSampleNs));
}

void begin_counters() {
  for (Counter* const counter : counters())
    counter->begin();
}

void settle_counters(Drained& to) {
  const std::int64_t ns = now_ns();
  for (Counter* const counter : counters())
    counter->settle(to, ns);
}

}  // namespace npu::observe
