// The thread pool that runs kernel programs, one for the process.
//
// A job is a sequence of stages, and a stage a number of pieces. Each thread begins with an equal
// part of them, and then steals from those that are slow or whose cores another process has. Who
// finds none left waits for about as long as they take, then computes the late ones again. The
// first to claim a piece writes its result, so nothing is written twice, and results are the same
// bits whoever computes.
//
// Without work its threads spin for some tens of microseconds, then sleep. They take no signals,
// and a forked child starts with a new pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace npu::ops::kernel_programs {

// What it does must allocate nothing, throw nothing and not run another job.
class Job {
 public:
  struct Stage {
    int pieces = 1;
    // Whether several threads may compute a piece. The late ones still read what `compute` reads
    // when the job has ended, until `retire`.
    bool is_repeatable = false;
    int most_together = 1;  // pieces that a thread may compute at once, of a repeatable stage
  };

  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual ~Job() = default;

  // Computes the pieces [first, end) of a repeatable stage, and leaves their results with the
  // worker.
  virtual void compute(int stage, int first, int end, int worker) noexcept = 0;
  // Writes those of some of them; does a piece of another stage as a whole.
  virtual void commit(int stage, int first, int end, int worker) noexcept = 0;
  // Called by the caller's thread behind each stage.
  virtual void end_stage(int) noexcept {}

  std::vector<Stage> stages;

 private:
  friend class ThreadPool;
  // Of each piece: the epoch of the stage for which it was last claimed.
  std::unique_ptr<std::atomic<std::uint64_t>[]> claims_;
  int room_ = 0;
  std::uint64_t first_epoch_ = 0;
};

// Runs `job` on so many threads, of which the caller's is worker 0. Jobs of several threads are
// queued.
// Throws std::bad_alloc before anything has run.
void run_job(Job& job, int workers);

// Runs `job` on the caller's thread alone, in the same queue; the pool stays as it is.
void run_alone(Job& job);

// Waits until no thread computes for `job` any more, which may then change or go.
void retire(const Job& job);

// The number of threads that this process can use, by its affinity and its cgroup's quota.
int usable_processors();

// The system's ids of the pool's threads: worker 1's, 2's and so on; that of worker 0 is the
// caller's.
std::vector<int> worker_threads();

}  // namespace npu::ops::kernel_programs
