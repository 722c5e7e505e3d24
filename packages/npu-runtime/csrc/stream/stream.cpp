// The streams of each device, the thread's current one, and events.
#include "npu/stream.h"

#include <array>
#include <atomic>
#include <memory>
#include <sstream>
#include <vector>

#include <c10/util/Exception.h>

#include "driver/device_selection.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/host_access.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "npu/sync_debug.h"
#include "stream/sanitizer.h"
#include "stream/stream_state.h"

namespace npu {

namespace {

constexpr std::size_t kMostDevices = 16;

// The thread's current stream ids, by device.
thread_local std::array<c10::StreamId, kMostDevices> current_ids{};

c10::DeviceIndex resolve(c10::DeviceIndex device_index) {
  const c10::DeviceIndex resolved = device_index < 0 ? current_device() : device_index;
  check_device(resolved);
  return resolved;
}

c10::Stream make(c10::DeviceIndex device_index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, {c10::DeviceType::PrivateUse1, device_index}, id);
}

}  // namespace

c10::Stream default_stream(c10::DeviceIndex device_index) {
  return make(resolve(device_index), kDefaultStream);
}

c10::Stream current_stream(c10::DeviceIndex device_index) {
  const c10::DeviceIndex index = resolve(device_index);
  return make(index, current_ids.at(static_cast<std::size_t>(index)));
}

c10::Stream stream_from_pool(c10::DeviceIndex device_index, int priority) {
  check_process();
  static std::array<std::array<std::atomic<std::uint32_t>, kMostDevices>, 2> next{};
  const c10::DeviceIndex index = resolve(device_index);
  const bool is_high = priority < 0;
  const c10::StreamId first = is_high ? kNormalStreams : 1;
  const c10::StreamId count = is_high ? kStreams - kNormalStreams : kNormalStreams - 1;
  const std::uint32_t turn =
      next.at(is_high ? 1 : 0).at(static_cast<std::size_t>(index)).fetch_add(1);
  return make(index, first + static_cast<c10::StreamId>(turn) % count);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::DeviceIndex index = stream.device_index();
  check_device(index);
  c10::StreamId& current = current_ids.at(static_cast<std::size_t>(index));
  const c10::Stream previous = make(index, current);
  stream::state_of(stream);  // refuses an id that does not exist
  current = stream.id();
  return previous;
}

bool is_idle(c10::Stream stream) {
  return stream::state_of(stream).is_idle();
}

void synchronize(c10::Stream stream) {
  stream::StreamState& state = stream::state_of(stream);
  note_sync("Stream.synchronize");
  {
    const observe::ScopedSpan span("sync", "stream", stream.device_index(), stream.id());
    state.drain();
  }
  sanitizer::on_stream_synchronize(state);
  state.raise_error();
}

npu_stream* native_stream(c10::Stream stream) {
  return stream::state_of(stream).native();
}

c10::Stream find_stream(c10::DeviceIndex device_index, std::uintptr_t native) {
  check_process();
  const c10::DeviceIndex index = resolve(device_index);
  for (c10::StreamId id = 0; id < kStreams; ++id) {
    const npu_stream* made = stream::state_of(index, id).native_if_made();
    if (made != nullptr && reinterpret_cast<std::uintptr_t>(made) == native) return make(index, id);
  }
  std::ostringstream address;
  address << "0x" << std::hex << native;
  throw Error(ErrorKind::kInput, "stream-external",
              "npu: the address must be a stream of npu:" + std::to_string(index) + ", got " +
                  address.str() + ". Pass the native_handle of a torch.npu.Stream.");
}

void record_event(npu_event** event, c10::Stream stream) {
  check_process();
  const npu_driver& driver = driver::table();
  if (*event == nullptr)
    driver::check_call(driver.event_create(stream.device_index(), event), "event_create");
  driver::check_call(driver.event_record(*event, native_stream(stream)), "event_record");
  sanitizer::on_event_record(*event, stream::state_of(stream));
}

void wait_event(npu_event* event, c10::Stream stream) {
  check_process();
  if (event == nullptr) return;
  driver::check_call(driver::table().stream_wait_event(native_stream(stream), event),
                     "stream_wait_event");
  sanitizer::on_event_wait(event, stream::state_of(stream));
}

bool is_event_done(npu_event* event) {
  check_process();
  if (event == nullptr) return true;
  std::int32_t is_done = 0;
  driver::check_call(driver::table().event_query(event, &is_done), "event_query");
  return is_done != 0;
}

void synchronize_event(npu_event* event) {
  check_process();
  if (event == nullptr) return;
  {
    const observe::ScopedSpan span("sync", "event");
    driver::check_call(driver::table().event_synchronize(event), "event_synchronize");
  }
  sanitizer::on_event_synchronize(event);
}

void destroy_event(npu_event* event) noexcept {
  if (event == nullptr || is_in_bad_fork()) return;
  sanitizer::on_event_destroy(event);
  driver::table().event_destroy(event);
}

double elapsed_ms(npu_event* start, npu_event* end) {
  TORCH_CHECK(
      start != nullptr && end != nullptr,
      "npu.Event.elapsed_time: both events must be recorded, got one that is not. Call record() "
      "first. [event-time]");
  TORCH_CHECK(is_event_done(start) && is_event_done(end),
              "npu.Event.elapsed_time: both events must be done, got one that is not. Call "
              "synchronize() first. "
              "[event-time]");
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  driver::check_call(driver::table().event_time_ns(start, &start_ns), "event_time_ns");
  driver::check_call(driver::table().event_time_ns(end, &end_ns), "event_time_ns");
  constexpr double kNsPerMs = 1e6;
  return static_cast<double>(end_ns - start_ns) / kNsPerMs;
}

namespace stream {

namespace {

struct DeviceStreams {
  std::vector<std::unique_ptr<StreamState>> states;
};

// Never destroyed: queues may hold work at exit, and their threads must not be ended.
std::vector<DeviceStreams>& all_streams() {
  driver::table_or_null();  // outside the static: it may run Python code
  static auto* all = [] {
    auto* made = new std::vector<DeviceStreams>(static_cast<std::size_t>(device_count()));
    for (std::size_t device = 0; device < made->size(); ++device) {
      for (c10::StreamId id = 0; id < kStreams; ++id) {
        (*made)[device].states.push_back(
            std::make_unique<StreamState>(static_cast<c10::DeviceIndex>(device), id));
      }
    }
    return made;
  }();
  return *all;
}

}  // namespace

StreamState& state_of(c10::DeviceIndex device_index, c10::StreamId id) {
  return *all_streams()[static_cast<std::size_t>(device_index)]
              .states[static_cast<std::size_t>(id)];
}

StreamState& state_of(c10::Stream stream) {
  check_device(stream.device_index());
  if (stream.device_type() != c10::DeviceType::PrivateUse1 || stream.id() < 0 ||
      stream.id() >= kStreams) {
    throw Error(ErrorKind::kInput, "stream-unknown",
                "npu: stream " + std::to_string(stream.id()) + " on " + stream.device().str() +
                    " must exist, got an unknown one. Create streams with torch.npu.Stream().");
  }
  return state_of(stream.device_index(), stream.id());
}

void drain_device(c10::DeviceIndex device_index) {
  for (c10::StreamId id = 0; id < kStreams; ++id)
    state_of(device_index, id).drain();
}

void synchronize_device(c10::DeviceIndex device_index) {
  {
    const observe::ScopedSpan span("sync", "device", device_index);
    drain_device(device_index);
  }
  for (c10::StreamId id = 0; id < kStreams; ++id) {
    sanitizer::on_stream_synchronize(state_of(device_index, id));
  }
  for (c10::StreamId id = 0; id < kStreams; ++id)
    state_of(device_index, id).raise_error();
}

}  // namespace stream
}  // namespace npu
