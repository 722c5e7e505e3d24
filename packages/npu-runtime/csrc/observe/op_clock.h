// The processor's counter as a clock for ops: reading it takes a third of the time of the system's
// clock, and an op needs it twice. Ticks are converted to times when ops are drained.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <cstdint>
#include <vector>

namespace npu::observe {

using Ticks = c10::approx_time_t;

inline Ticks now_ticks() noexcept {
  return c10::getApproximateTime();
}

// Times at which both clocks were read. Ticks between two of them have equal length, so that times
// follow adjustments of the system's clock.
class OpClock {
 public:
  // Call it when a recording starts, and before a drain converts ticks to times.
  void read_both();

  // Nanoseconds since the Unix epoch. Precondition: both were read at least twice.
  std::int64_t time_of(Ticks ticks) const noexcept;

 private:
  struct Moment {
    Ticks ticks;
    std::int64_t ns;
  };

  static Moment read();

  std::vector<Moment> moments_;
};

}  // namespace npu::observe
