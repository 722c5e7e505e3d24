// Counters that change with every op, such as allocated bytes of a device: sampled, because a
// record of each change would cost more than the op.
#pragma once

#include <atomic>
#include <cstdint>

#include <c10/core/Device.h>

#include "observe/buffer.h"
#include "observe/op_clock.h"

namespace npu::observe {

// Three of a counter's values within a tenth of a millisecond are reported: the first, the highest,
// and the last, as the value at the end of that time. Only Python's listeners receive them: torch
// reports memory to its own profiler.
//
// Never destroyed, so that it is available to later listeners. Any thread may set it.
class Counter {
 public:
  // The texts must be literals.
  Counter(const char* category, const char* name, c10::DeviceIndex device_index);
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  void set(double value) {
    if ((detail::listeners.load(std::memory_order_relaxed) & kPython) == 0) return;
    const Ticks now = now_ticks();
    if (now < due_.load(std::memory_order_relaxed) &&
        value <= highest_.load(std::memory_order_relaxed)) {
      latest_.store(value, std::memory_order_relaxed);
      has_latest_.store(true, std::memory_order_relaxed);
      return;
    }
    sample(value, now);
  }

  // With the buffer's lock: drops earlier values when a listener starts.
  void begin();
  // With the buffer's lock: records pending values.
  void settle(Drained& to, std::int64_t now_ns);

 private:
  struct Point {
    double value;
    std::int64_t ns;
  };

  void sample(double value, Ticks now);
  void record(Drained& to, const Point& point);
  Ticks due_after(Ticks now, std::int64_t now_ns) const;

  const char* const category_;
  const char* const name_;
  const c10::DeviceIndex device_index_;

  std::atomic<Ticks> due_{0};  // of the next record
  std::atomic<double> highest_{0};
  std::atomic<double> latest_{0};
  std::atomic<bool> has_latest_{false};

  // With the buffer's lock.
  Point recorded_{};
  std::int64_t highest_ns_ = 0;
  Ticks first_ticks_ = 0;  // both of the first record, to measure ticks
  std::int64_t first_ns_ = 0;
};

// For all counters, with the buffer's lock.
void begin_counters();
void settle_counters(Drained& to);

}  // namespace npu::observe
