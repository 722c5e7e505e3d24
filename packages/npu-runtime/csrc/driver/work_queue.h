// An in-order queue of host work with a worker thread, started on first use.
//
// The built-in drivers use it for streams (host_streams.cpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace npu::driver {

class WorkQueue {
 public:
  using Work = std::function<void()>;

  WorkQueue() = default;
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  // Waits for the work and ends the thread.
  ~WorkQueue();

  // True if no work is waiting or running. One load.
  bool is_idle() const noexcept { return unfinished_.load(std::memory_order_acquire) == 0; }

  // Appends work. It must not throw, nor wait for this queue.
  void push(Work work);

  // Waits until everything that was pushed before the call is done.
  void wait();

 private:
  void run();

  std::atomic<std::uint64_t> unfinished_{0};
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable progressed_;
  std::deque<Work> works_;
  std::uint64_t pushed_ = 0;
  std::uint64_t finished_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace npu::driver
