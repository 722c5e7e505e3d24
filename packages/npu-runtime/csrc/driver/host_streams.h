// Streams and events of a driver whose device has no queues of its own: worker threads on the host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "driver/work_queue.h"
#include "npu/driver.h"

// The two types that driver.h leaves to drivers; the built-in ones share these.
struct npu_stream {
  std::int32_t device = 0;
  npu::driver::WorkQueue queue;
};

struct npu_event {
  // One record of the event. Recording again makes a new one, and whoever waits for the old keeps
  // it.
  struct Point {
    std::mutex mutex;
    std::condition_variable reached;
    bool is_done = false;
    std::int64_t time_ns = 0;

    void finish();
    void wait();
    bool done();
  };

  std::mutex mutex;
  std::shared_ptr<Point> latest;

  std::shared_ptr<Point> point();
};

namespace npu::driver {

// The stream and event functions of the table, ready to put into one.
npu_status host_stream_create(std::int32_t device, std::int32_t priority, npu_stream** stream);
void host_stream_destroy(npu_stream* stream);
npu_status host_stream_query(npu_stream* stream, std::int32_t* is_idle);
npu_status host_stream_synchronize(npu_stream* stream);
npu_status host_stream_wait_event(npu_stream* stream, npu_event* event);
npu_status host_event_create(std::int32_t device, npu_event** event);
void host_event_destroy(npu_event* event);
npu_status host_event_record(npu_event* event, npu_stream* stream);
npu_status host_event_query(npu_event* event, std::int32_t* is_done);
npu_status host_event_synchronize(npu_event* event);
npu_status host_event_time_ns(npu_event* event, std::int64_t* time_ns);

}  // namespace npu::driver
