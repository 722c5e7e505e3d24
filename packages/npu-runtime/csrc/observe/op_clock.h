// The processor's counter as a clock for ops: reading it takes a third of what the system's clock
// takes, and an op needs it twice. Its ticks become times when ops are drained.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <cstdint>
#include <vector>

namespace npu::observe {

using Ticks = c10::approx_time_t;

inline Ticks now_ticks() noexcept {
  return c10::getApproximateTime();
}

// Moments at which both clocks were read. Between two of them ticks count as equally long, so that
// times follow the system's clock where it is adjusted.
class OpClock {
 public:
  // To be called when ops begin to be recorded, and before a drain's ticks are turned into times.
  void read_both();

  // Nanoseconds since the Unix epoch. Precondition: both were read twice at least.
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
