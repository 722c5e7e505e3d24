// The queue's worker: runs work in order, one item at a time.
#include "driver/work_queue.h"

#include <utility>

namespace npu::driver {

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void WorkQueue::push(Work work) {
  unfinished_.fetch_add(1, std::memory_order_acq_rel);
  {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    ++pushed_;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  has_work_.notify_one();
}

void WorkQueue::wait() {
  if (is_idle()) return;
  std::unique_lock lock(mutex_);
  const std::uint64_t target = pushed_;
  progressed_.wait(lock, [&] { return finished_ >= target; });
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return is_ending_ || !works_.empty(); });
    if (works_.empty()) return;
    Work work = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // its captures are destroyed before it counts as done
    lock.lock();
    ++finished_;
    unfinished_.fetch_sub(1, std::memory_order_acq_rel);
    progressed_.notify_all();
  }
}

}  // namespace npu::driver
