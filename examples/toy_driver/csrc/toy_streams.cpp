// Streams, events and copies on the queue of toy_streams.h.
#include "toy_streams.h"

#include <cstring>
#include <memory>

// --8<-- [start:events]
// A point in a stream's order. Recording again makes a new one; who waits for the old one keeps it.
struct Point {
  std::mutex mutex;
  std::condition_variable reached;
  std::int64_t time_ns = 0;  // 0 until it is reached

  void reach() {
    const std::lock_guard lock(mutex);
    time_ns = toy::now_ns();
    reached.notify_all();
  }

  std::int64_t time() {
    const std::lock_guard lock(mutex);
    return time_ns;
  }

  void wait() {
    std::unique_lock lock(mutex);
    reached.wait(lock, [this] { return time_ns != 0; });
  }
};

struct npu_event {
  std::mutex mutex;
  std::shared_ptr<Point> latest;  // empty until the event is recorded

  std::shared_ptr<Point> point() {
    const std::lock_guard lock(mutex);
    return latest;
  }
};
// --8<-- [end:events]

namespace toy {

npu_status memory_copy(npu_stream* stream, void* to, const void* from, std::size_t size_bytes,
                       npu_done done, void* context) {
  return enqueue("memory_copy", stream, done, context, [=] {
    std::memcpy(to, from, size_bytes);
    return NPU_OK;
  });
}

npu_status stream_create(std::int32_t device, std::int32_t, npu_stream** stream) {
  if (const auto status = check_device("stream_create", device)) return status;
  return guarded("stream_create", [&] {
    *stream = new npu_stream;
    return NPU_OK;
  });
}

void stream_destroy(npu_stream* stream) {
  delete stream;
}

npu_status stream_query(npu_stream* stream, std::int32_t* is_idle) {
  const std::lock_guard lock(stream->mutex);
  *is_idle = stream->unfinished == 0 ? 1 : 0;
  return NPU_OK;
}

npu_status stream_synchronize(npu_stream* stream) {
  stream->wait();
  return NPU_OK;
}

npu_status stream_wait_event(npu_stream* stream, npu_event* event) {
  const auto point = event->point();
  if (point != nullptr) stream->push([point] { point->wait(); });
  return NPU_OK;
}

npu_status event_create(std::int32_t device, npu_event** event) {
  if (const auto status = check_device("event_create", device)) return status;
  *event = new npu_event;
  return NPU_OK;
}

void event_destroy(npu_event* event) {
  delete event;
}

npu_status event_record(npu_event* event, npu_stream* stream) {
  const auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(event->mutex);
    event->latest = point;
  }
  stream->push([point] { point->reach(); });
  return NPU_OK;
}

npu_status event_query(npu_event* event, std::int32_t* is_done) {
  const auto point = event->point();
  *is_done = point == nullptr || point->time() != 0 ? 1 : 0;
  return NPU_OK;
}

npu_status event_synchronize(npu_event* event) {
  if (const auto point = event->point()) point->wait();
  return NPU_OK;
}

npu_status event_time_ns(npu_event* event, std::int64_t* time_ns) {
  const auto point = event->point();
  if (point == nullptr || point->time() == 0)
    return fail(NPU_ERROR_ARGUMENT, "event_time_ns: the event is not done");
  *time_ns = point->time();
  return NPU_OK;
}

}  // namespace toy
