// The older interface of torch's profiler, torch.autograd.profiler.profile(use_device="npu"): two
// events of the device around every op. profiler.cpp has kineto's rows.
#include <torch/csrc/profiler/stubs/base.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "npu/device.h"
#include "npu/observe.h"
#include "npu/stream.h"

namespace npu::kineto {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class EventTiming final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              std::int64_t* cpu_ns) const override {
    const c10::Stream stream = current_stream(-1);
    if (device != nullptr) *device = stream.device_index();
    npu_event* made = nullptr;
    record_event(&made, stream);
    *event = {made, [](void* owned) { destroy_event(static_cast<npu_event*>(owned)); }};
    if (cpu_ns != nullptr) *cpu_ns = observe::now_ns();
  }

  // Microseconds.
  float elapsed(const ProfilerVoidEventStub* first,
                const ProfilerVoidEventStub* second) const override {
    auto* const begin = static_cast<npu_event*>(first->get());
    auto* const end = static_cast<npu_event*>(second->get());
    synchronize_event(begin);
    synchronize_event(end);
    return static_cast<float>(elapsed_ms(begin, end) * 1000.0);
  }

  void mark(const char* name) const override {
    const std::int64_t now = observe::now_ns();
    observe::emit_span("range", name, now, now);
  }

  void rangePush(const char* name) const override {
    open_ranges().emplace_back(name, observe::now_ns());
  }

  void rangePop() const override {
    std::vector<std::pair<std::string, std::int64_t>>& ranges = open_ranges();
    if (ranges.empty()) return;
    observe::emit_span("range", ranges.back().first, ranges.back().second, observe::now_ns());
    ranges.pop_back();
  }

  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> action) const override {
    const c10::DeviceIndex before = current_device();
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      set_device(index);
      action(index);
    }
    set_device(before);
  }

  void synchronize() const override { npu::synchronize(current_device()); }

 private:
  static std::vector<std::pair<std::string, std::int64_t>>& open_ranges() {
    thread_local std::vector<std::pair<std::string, std::int64_t>> ranges;
    return ranges;
  }
};

struct Registration {
  Registration() {
    static EventTiming timing;
    torch::profiler::impl::registerPrivateUse1Methods(&timing);
  }
} registration;

}  // namespace

}  // namespace npu::kineto
