// Times of DistributedDataParallel's phases on npu, which its logger looks up by device type.
//
// Host times: gradients are reduced from host threads, after a synchronization.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace npu::distributed {
namespace {

class ReducerTimer final : public c10d::Timer {
 public:
  explicit ReducerTimer(c10::Device) {}

  std::optional<std::int64_t> measureDifference(Event start, Event end) override {
    const std::optional<std::int64_t> from = getTimestamp(start);
    const std::optional<std::int64_t> to = getTimestamp(end);
    if (!from || !to || *to < *from) return std::nullopt;  // one of them was not reached
    return *to - *from;
  }
};

}  // namespace
}  // namespace npu::distributed

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, npu::distributed::ReducerTimer)
}  // namespace c10d
