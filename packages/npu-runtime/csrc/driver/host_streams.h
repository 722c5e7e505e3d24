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

// Puts the stream and event functions into a table.
void fill_host_streams(npu_driver& table) noexcept;

}  // namespace npu::driver
