// Host streams: an event is a point that the stream's worker reaches, at once when the stream is
// idle.
#include "driver/host_streams.h"

#include <chrono>

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

// A worker thread cannot be preferred by priority without privileges, so both priorities are served
// alike.
npu_status host_stream_create(std::int32_t device, std::int32_t, npu_stream** stream) {
  *stream = new npu_stream;
  (*stream)->device = device;
  return NPU_OK;
}

void host_stream_destroy(npu_stream* stream) {
  delete stream;
}

npu_status host_stream_query(npu_stream* stream, std::int32_t* is_idle) {
  *is_idle = stream->queue.is_idle() ? 1 : 0;
  return NPU_OK;
}

npu_status host_stream_synchronize(npu_stream* stream) {
  stream->queue.wait();
  return NPU_OK;
}

npu_status host_stream_wait_event(npu_stream* stream, npu_event* event) {
  const auto point = event->point();
  // An event that was never recorded holds nobody up.
  if (point != nullptr && !point->done()) stream->queue.push([point] { point->wait(); });
  return NPU_OK;
}

npu_status host_event_create(std::int32_t, npu_event** event) {
  *event = new npu_event;
  return NPU_OK;
}

void host_event_destroy(npu_event* event) {
  delete event;
}

npu_status host_event_record(npu_event* event, npu_stream* stream) {
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

npu_status host_event_query(npu_event* event, std::int32_t* is_done) {
  const auto point = event->point();
  *is_done = point == nullptr || point->done() ? 1 : 0;
  return NPU_OK;
}

npu_status host_event_synchronize(npu_event* event) {
  if (const auto point = event->point()) point->wait();
  return NPU_OK;
}

npu_status host_event_time_ns(npu_event* event, std::int64_t* time_ns) {
  const auto point = event->point();
  if (point == nullptr || !point->done()) return NPU_ERROR_ARGUMENT;
  *time_ns = point->time_ns;
  return NPU_OK;
}

}  // namespace npu::driver
