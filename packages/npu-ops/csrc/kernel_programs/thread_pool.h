// The thread pool that runs kernel programs, one for the process.
//
// Between the parts of a piece of work its threads spin at a barrier, which takes 0.1 to 0.2 us on
// two cores. Without work they spin for some tens of microseconds, then sleep. They take no
// signals, and a forked child starts with a new pool.
#pragma once

#include <functional>

namespace npu::ops::kernel_programs {

// The barrier of the threads that run one piece of work.
class Barrier {
 public:
  virtual ~Barrier() = default;
  // Waits for all workers; each sees what the others wrote before. Throws if a worker has failed,
  // which `work` must not catch.
  virtual void wait() = 0;
  int workers = 1;
};

using Work = std::function<void(Barrier& barrier, int worker)>;

// Runs `work` once on each of `workers` threads, with the caller as worker 0, and waits for all.
// Calls of several threads are queued. All workers wait at the barrier equally often. An exception
// of one of them ends the others' work at their next barrier, and is thrown here. `work` must not
// call this.
void run_on_workers(int workers, const Work& work);

// Runs `work` on the caller's thread alone, in the same queue; the pool stays as it is.
void run_alone(const Work& work);

// The number of threads that this process can use, by its affinity and its cgroup's quota.
int usable_processors();

// The number of the pool's threads, without the caller's.
int waiting_workers();

}  // namespace npu::ops::kernel_programs
