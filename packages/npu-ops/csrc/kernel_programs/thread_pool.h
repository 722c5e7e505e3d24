// The thread pool that runs kernel programs, one for the process.
//
// A job is a sequence of stages, and a stage a number of pieces. Each thread begins with an equal
// part of them, and then steals from slow or preempted threads. A thread without pieces waits for
// about as long as they take, then computes the late ones again. The first to claim a piece writes
// its result, so no result is written twice, and all results are bitwise equal.
//
// Idle threads spin for some tens of microseconds, then sleep. They block signals, and a forked
// child starts with a new pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace npu::ops::kernel_programs {

// The function must not allocate, throw or run another job.
class Job {
 public:
  struct Stage {
    int pieces = 1;
    // Whether several threads may compute a piece. Late threads still read the inputs of `compute`
    // after the job, until `retire`.
    bool is_repeatable = false;
    int most_together = 1;  // pieces per call, for a repeatable stage
  };

  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual ~Job() = default;

  // Computes the pieces [first, end) of a repeatable stage, and leaves their results with the
  // worker.
  virtual void compute(int stage, int first, int end, int worker) noexcept = 0;
  // Writes the results of some of them; runs a piece of another stage completely.
  virtual void commit(int stage, int first, int end, int worker) noexcept = 0;
  // Called by the caller's thread after each stage.
  virtual void end_stage(int) noexcept {}

  std::vector<Stage> stages;

 private:
  friend class ThreadPool;
  // Of each piece: the epoch of the stage for which it was last claimed.
  std::unique_ptr<std::atomic<std::uint64_t>[]> claims_;
  int room_ = 0;
  std::uint64_t first_epoch_ = 0;
};

// Runs `job` on this many threads; the caller's is worker 0. Jobs of several threads are queued.
// Throws std::bad_alloc before anything runs.
void run_job(Job& job, int workers);

// Runs `job` on the caller's thread only, in the same queue; the pool is not changed.
void run_alone(Job& job);

// Waits until no thread computes for `job`, which may then be changed or destroyed.
void retire(const Job& job);

// The number of threads that this process can use, by affinity and cgroup quota.
int usable_processors();

// OS ids of the pool's threads: worker 1, 2 and so on; worker 0 is the caller.
std::vector<int> worker_threads();

}  // namespace npu::ops::kernel_programs
