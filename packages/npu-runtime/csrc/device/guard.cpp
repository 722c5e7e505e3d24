// The device guard: how torch's own code switches devices, asks for streams and times with events.
//
// Each device has one stream, the default one, on which work is done by the time its call returns.
#include <memory>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "npu/device.h"
#include "npu/observe.h"

namespace npu {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// All earlier work is done when an event is recorded, so the event is its time.
struct Event {
  std::int64_t recorded_ns;
};

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, exchange_device(device.index())};
  }

  c10::Device getDevice() const override { return {kType, current_device()}; }

  void setDevice(c10::Device device) const override { set_device(device.index()); }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    // Called from destructors to restore an index that was valid before.
    if (device.index() >= 0 && device.index() < device_count()) set_device(device.index());
  }

  c10::Stream getStream(c10::Device device) const override { return getDefaultStream(device); }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT,
                       {kType, device.has_index() ? device.index() : current_device()});
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getDefaultStream(stream.device());
  }

  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex device_index) const override {
    synchronize(device_index);
  }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event{};
    static_cast<Event*>(*event)->recorded_ns = observe::now_ns();
  }

  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr,
        "npu.Event.elapsed_time: both events must have been recorded; call record() first.");
    constexpr double kNsPerMs = 1e6;
    return static_cast<double>(static_cast<Event*>(end)->recorded_ns -
                               static_cast<Event*>(start)->recorded_ns) /
           kNsPerMs;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

}  // namespace
}  // namespace npu
