// Core placement of the pool's threads, to correct slow choices of the system.
//
// Two threads may share a core while another process has a core to itself, and the caller may be on
// the busiest core, although only it runs between jobs. The caller checks a few times per second,
// and temporarily narrows the affinity of a worker.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace npu::ops::kernel_programs {

class CorePlacement {
 public:
  explicit CorePlacement(int workers);

  // Called by a worker's thread at its start, and at the start of a job.
  void start(int worker);
  void note(int worker);

  // Called by the caller, worker 0, before a job. `workers` may be fewer than requested.
  void look(int workers);

  // OS ids of the threads of worker 1, 2 and so on.
  std::vector<int> threads(int workers) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Member {
    std::atomic<int> thread{0};   // 0 until it starts
    std::atomic<int> core{-1};    // its last core
    Clock::time_point back_at{};  // time of restoring the caller's affinity; 0 if it has it
  };

  void send(int worker, const cpu_set_t& cores, Clock::time_point now);
  bool separate(int workers, const cpu_set_t& allowed, Clock::time_point now);
  bool is_preempted();

  const std::unique_ptr<Member[]> members_;
  Clock::time_point look_at_{}, swap_at_{};
  int caller_ = 0;
  long preemptions_ = 0;  // of the caller, up to the last check
  int next_ = 0;          // the worker sent to the caller's core
};

}  // namespace npu::ops::kernel_programs
