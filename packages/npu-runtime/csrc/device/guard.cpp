// The device guard: torch uses it to switch devices and streams, and to record events.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "npu/device.h"
#include "npu/process.h"
#include "npu/stream.h"

namespace npu {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

npu_event* event_of(void* event) {
  return static_cast<npu_event*>(event);
}

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

  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  // Every dtype: ops in dtypes that the device does not support run on the host.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    check_process();
    check_device(device.index());
    return {};
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return stream_from_pool(device.index(), is_high_priority ? -1 : 0);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }

  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native_stream(stream);
  }

  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex device_index) const override {
    synchronize(device_index);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device_index,
              const c10::EventFlag) const override {
    TORCH_CHECK(device_index == -1 || device_index == stream.device_index(),
                "npu.Event.record: the stream must be on the event's device, npu:",
                static_cast<int>(device_index),
                ", got one on npu:", static_cast<int>(stream.device_index()),
                ". Record the event there. [event-device]");
    npu_event* native = event_of(*event);
    record_event(&native, stream);
    *event = native;
  }

  void block(void* event, const c10::Stream& stream) const override {
    wait_event(event_of(event), stream);
  }
  bool queryEvent(void* event) const override { return is_event_done(event_of(event)); }
  void synchronizeEvent(void* event) const override { synchronize_event(event_of(event)); }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    destroy_event(event_of(event));
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return elapsed_ms(event_of(start), event_of(end));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

}  // namespace
}  // namespace npu
