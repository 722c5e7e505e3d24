// The toy chip's queue: a thread that works through it, one piece after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "toy_parts.h"

// --8<-- [start:streams]
// A queue and the thread that works through it.
struct npu_stream {
  npu_stream() : thread([this] { work_through(); }) {}

  ~npu_stream() {
    push(nullptr);  // the last piece of work: to end
    thread.join();
  }

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    ++unfinished;
    works.push_back(std::move(work));
    changed.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return unfinished == 0; });
  }

  void work_through() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !works.empty(); });
      const std::function<void()> work = std::move(works.front());
      works.pop_front();
      if (work == nullptr) return;
      lock.unlock();
      work();  // calls `done` as well, so that an idle stream has reported everything
      lock.lock();
      --unfinished;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> works;
  std::size_t unfinished = 0;
  std::thread thread;  // last: it uses all of the above
};

namespace toy {

// Enqueues work that gives a status. With `done` the call returns at once, else it waits.
template <typename Body>
npu_status enqueue(const char* call, npu_stream* stream, npu_done done, void* context, Body body) {
  if (done != nullptr) {
    stream->push([=] {
      const npu_status status = guarded(call, body);
      done(context, status, status == NPU_OK ? "" : last_error());
    });
    return NPU_OK;
  }
  npu_status status = NPU_OK;
  std::string sentence;
  stream->push([&] {
    status = guarded(call, body);
    sentence = last_error();
  });
  stream->wait();
  return status == NPU_OK ? NPU_OK : fail(status, sentence);
}
// --8<-- [end:streams]

}  // namespace toy
