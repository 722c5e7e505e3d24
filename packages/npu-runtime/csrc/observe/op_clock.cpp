// Reads both clocks at once, and interpolates between two readings.
#include "observe/op_clock.h"

#include <algorithm>

#include "npu/observe.h"

namespace npu::observe {

namespace {

// The shortest of this many readings counts, as it was not interrupted.
constexpr int kReadings = 5;
// Closer readings do not determine the length of a tick.
constexpr std::int64_t kLeastNs = 200'000;
// Two per second: a single line covers the first hours of longer recordings.
constexpr std::size_t kMostMoments = 1U << 16U;

}  // namespace

OpClock::Moment OpClock::read() {
  Moment best{};
  Ticks shortest = 0;
  for (int i = 0; i < kReadings; ++i) {
    const Ticks before = now_ticks();
    const std::int64_t ns = now_ns();
    const Ticks length = now_ticks() - before;
    if (i == 0 || length < shortest) {
      shortest = length;
      best = {before + length / 2, ns};
    }
  }
  return best;
}

void OpClock::read_both() {
  Moment moment = read();
  while (moments_.size() == 1 && moment.ns - moments_[0].ns < kLeastNs &&
         moment.ns >= moments_[0].ns) {
    moment = read();
  }
  if (moments_.size() >= 2 && moment.ns - moments_.back().ns < kLeastNs) return;
  if (moments_.size() == kMostMoments) moments_.erase(moments_.begin() + 1, moments_.end() - 1);
  moments_.push_back(moment);
}

std::int64_t OpClock::time_of(Ticks ticks) const noexcept {
  std::size_t last = moments_.size() - 1;
  while (last > 1 && moments_[last - 1].ticks > ticks)
    --last;
  const Moment& from = moments_[last - 1];
  const Moment& to = moments_[last];
  const double share = static_cast<double>(static_cast<std::int64_t>(ticks - from.ticks)) /
                       static_cast<double>(std::max<std::int64_t>(
                           static_cast<std::int64_t>(to.ticks - from.ticks), 1));
  return from.ns + static_cast<std::int64_t>(share * static_cast<double>(to.ns - from.ns));
}

}  // namespace npu::observe
