// What must stay until a run has ended, on whichever thread that is.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "npu/program.h"
#include "program/request_pool.h"

namespace npu::program {

// Moved into the pending work when a run is enqueued; otherwise it ends with the call. After a
// failure the request's bindings and state are in doubt, so it is dropped with the lease.
struct RunLease {
  // Says that a run of a session is under way, until the lease ends.
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

  // The run succeeded: the request serves again.
  void give_back(RequestPool& pool) {
    if (request != nullptr) pool.give_back(std::move(request));
  }

  // In this order, so that the request goes before the program it belongs to, and a session is free
  // only when all else is let go.
  Running running;
  std::shared_ptr<Program> program;
  Request request;  // of the pool; empty when a session or a graph owns it
};

}  // namespace npu::program
