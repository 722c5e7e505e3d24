// Which cores the pool's threads use, where the system's own choice costs time.
//
// Two of them may share a core while another process has a whole one, and the caller may sit on
// the core that others want most, although what runs between jobs is its alone. The caller looks
// some times a second, and narrows the affinity of a worker for a moment.
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

  // Called by a worker's thread when it starts, and when it comes to a job.
  void start(int worker);
  void note(int worker);

  // Called by the caller, worker 0, before a job. `workers` may be fewer than were asked for.
  void look(int workers);

  // The system's ids of the threads of worker 1, 2 and so on.
  std::vector<int> threads(int workers) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Member {
    std::atomic<int> thread{0};   // 0 until it has started
    std::atomic<int> core{-1};    // where it last was
    Clock::time_point back_at{};  // when its affinity is the caller's again; 0 where it is
  };

  void send(int worker, const cpu_set_t& cores, Clock::time_point now);
  bool separate(int workers, const cpu_set_t& allowed, Clock::time_point now);
  bool is_preempted();

  const std::unique_ptr<Member[]> members_;
  Clock::time_point look_at_{}, swap_at_{};
  int caller_ = 0;
  long preemptions_ = 0;  // of the caller, up to the last look
  int next_ = 0;          // the worker that is sent to the caller's core
};

}  // namespace npu::ops::kernel_programs
