// Resources of a run until it has ended, on any thread.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "npu/program.h"
#include "program/request_pool.h"

namespace npu::program {

// Moved into the pending work of an enqueued run; otherwise it ends with the call. After a failure
// the request's bindings and state are undefined, so it is dropped with the lease.
struct RunLease {
  // Marks a session's run as active until the lease ends.
  class Running {
   public:
    Running() = default;
    explicit Running(std::shared_ptr<std::atomic<bool>> flag) : flag_(std::move(flag)) {
      flag_->store(true, std::memory_order_release);
    }
    Running(Running&&) = default;
    Running& operator=(Running&&) = default;
    ~Running() {
      if (flag_ != nullptr) flag_->store(false, std::memory_order_release);
    }

   private:
    std::shared_ptr<std::atomic<bool>> flag_;
  };

  // Reports success: the request may be reused.
  void give_back(RequestPool& pool) {
    if (request != nullptr) pool.give_back(std::move(request));
  }

  // In this order, so that the request is released before its program, and a session after
  // everything else.
  Running running;
  std::shared_ptr<Program> program;
  Request request;  // from the pool; empty if a session or a graph owns it
};

}  // namespace npu::program
