// Streams and events of a device without queues: worker threads on the host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "driver/work_queue.h"
#include "npu/driver.h"

// The two opaque types of driver.h; the built-in drivers share these.
struct npu_stream {
  std::int32_t device = 0;
  npu::driver::WorkQueue queue;
};

struct npu_event {
  // One record of the event. Recording again creates a new one; existing waits keep the old one.
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

// Sets the stream and event functions of a table.
void fill_host_streams(npu_driver& table) noexcept;

}  // namespace npu::driver
