// Host streams: an event is a point in the worker's queue, reached at once if the stream is idle.
#include "driver/host_streams.h"

#include <chrono>

#include "driver/host_device.h"

namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void npu_event::Point::finish() {
  {
    const std::lock_guard lock(mutex);
    time_ns = now_ns();
    is_done = true;
  }
  reached.notify_all();
}

void npu_event::Point::wait() {
  std::unique_lock lock(mutex);
  reached.wait(lock, [this] { return is_done; });
}

bool npu_event::Point::done() {
  const std::lock_guard lock(mutex);
  return is_done;
}

std::shared_ptr<npu_event::Point> npu_event::point() {
  const std::lock_guard lock(mutex);
  return latest;
}

namespace npu::driver {
namespace {

// Raising a worker thread's priority requires privileges, so both priorities are equal.
npu_status stream_create(std::int32_t device, std::int32_t, npu_stream** stream) {
  if (const auto status = check_device_index("stream_create", device); status != NPU_OK)
    return status;
  *stream = new npu_stream;
  (*stream)->device = device;
  return NPU_OK;
}

void stream_destroy(npu_stream* stream) {
  delete stream;
}

npu_status stream_query(npu_stream* stream, std::int32_t* is_idle) {
  *is_idle = stream->queue.is_idle() ? 1 : 0;
  return NPU_OK;
}

npu_status stream_synchronize(npu_stream* stream) {
  stream->queue.wait();
  return NPU_OK;
}

npu_status stream_wait_event(npu_stream* stream, npu_event* event) {
  const auto point = event->point();
  // Waiting for an event that was never recorded returns at once.
  if (point != nullptr && !point->done()) stream->queue.push([point] { point->wait(); });
  return NPU_OK;
}

npu_status event_create(std::int32_t device, npu_event** event) {
  if (const auto status = check_device_index("event_create", device); status != NPU_OK)
    return status;
  *event = new npu_event;
  return NPU_OK;
}

void event_destroy(npu_event* event) {
  delete event;
}

npu_status event_record(npu_event* event, npu_stream* stream) {
  const auto point = std::make_shared<npu_event::Point>();
  {
    const std::lock_guard lock(event->mutex);
    event->latest = point;
  }
  if (stream->queue.is_idle()) {
    point->finish();
  } else {
    stream->queue.push([point] { point->finish(); });
  }
  return NPU_OK;
}

npu_status event_query(npu_event* event, std::int32_t* is_done) {
  const auto point = event->point();
  *is_done = point == nullptr || point->done() ? 1 : 0;
  return NPU_OK;
}

npu_status event_synchronize(npu_event* event) {
  if (const auto point = event->point()) point->wait();
  return NPU_OK;
}

npu_status event_time_ns(npu_event* event, std::int64_t* time_ns) {
  const auto point = event->point();
  if (point == nullptr || !point->done()) {
    return fail(NPU_ERROR_ARGUMENT, "event_time_ns: the event is not done");
  }
  *time_ns = point->time_ns;
  return NPU_OK;
}

}  // namespace

void fill_host_streams(npu_driver& table) noexcept {
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_query = stream_query;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait_event = stream_wait_event;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.event_time_ns = event_time_ns;
}

}  // namespace npu::driver
