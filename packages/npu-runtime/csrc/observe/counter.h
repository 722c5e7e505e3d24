// Values over time that change with every op, such as the bytes that are allocated on a device:
// sampled, as a record of each change would cost more than the op's own.
#pragma once

#include <atomic>
#include <cstdint>

#include <c10/core/Device.h>

#include "observe/buffer.h"
#include "observe/op_clock.h"

namespace npu::observe {

// Of a counter's values within a tenth of a millisecond three are reported: the first, the
// highest, and the last, as the value at the end of that time. Only Python's listeners are told:
// torch's profiler hears of memory from torch itself.
//
// Never destroyed, so that it is there for whoever listens next. Any thread may set it.
class Counter {
 public:
  // The texts are literals.
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

  // With the buffer's lock: forgets earlier values when somebody begins to listen.
  void begin();
  // With the buffer's lock: records what was not recorded yet.
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
  Ticks first_ticks_ = 0;  // both of the first record, which tells how long a tick is
  std::int64_t first_ns_ = 0;
};

// Of all counters there are, with the buffer's lock.
void begin_counters();
void settle_counters(Drained& to);

}  // namespace npu::observe
