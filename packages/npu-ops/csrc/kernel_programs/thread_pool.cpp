#include "kernel_programs/thread_pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <fstream>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

namespace npu::ops::kernel_programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpinTime = std::chrono::microseconds(60);  // before a worker without work sleeps
constexpr int kSpinsPerLook = 64;      // looks at the clock are dearer than spins
constexpr int kSpinsAtBarrier = 4000;  // some 100 us: then another process has our processor

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One thread that works without a thread pool.
struct SingleWorker final : Barrier {
  void wait() override {}
};

struct Abandoned {};  // thrown where workers wait after one of them has failed

class ThreadPool final : public Barrier {
 public:
  explicit ThreadPool(int wanted) : wanted(wanted) {
    workers = wanted;
    for (int worker = 1; worker < wanted; ++worker) {
      try {
        std::thread([this, worker] { serve(worker); }).detach();
      } catch (const std::exception&) {  // no more threads or memory: fewer do the work
        workers = worker;
        break;
      }
    }
  }

  const int wanted;  // how many workers were asked for

  void run(const Work& work) {
    work_ = &work;
    call_.fetch_add(1, std::memory_order_release);
    call_.notify_all();
    take_part(0);
    if (!has_failed_.load(std::memory_order_relaxed)) return;
    has_failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // Ends the other workers, who then let go of this object.
  void dismiss() {
    const Work leave = [](Barrier&, int) {};
    is_dismissed_.store(true, std::memory_order_relaxed);
    run(leave);
    while (left_.load(std::memory_order_acquire) != workers - 1)
      sched_yield();
  }

  void wait() override {
    if (workers > 1 && !all_succeed()) throw Abandoned{};
  }

 private:
  // Waits for all workers; whether none has failed before it came here.
  bool all_succeed() {
    const std::uint32_t now = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == workers - 1) {
      const bool has_failed = has_failed_.load(std::memory_order_relaxed);
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store((now | kFailed) + 1 + has_failed, std::memory_order_release);
      return !has_failed;
    }
    for (int spins = 0;; ++spins) {
      const std::uint32_t then = phase_.load(std::memory_order_acquire);
      if (then != now) return (then & kFailed) == 0;
      if (spins < kSpinsAtBarrier) {
        pause();
      } else {
        sched_yield();
      }
    }
  }

  // A worker that fails goes to the barrier where the others wait next, or end, and they see it
  // there. No worker reads the work after the last barrier.
  void take_part(int worker) {
    bool is_done = false;
    try {
      (*work_)(*this, worker);
      is_done = all_succeed();
    } catch (const Abandoned&) {
    } catch (...) {
      if (!has_failed_.exchange(true, std::memory_order_relaxed)) {
        failure_ = std::current_exception();
      }
      all_succeed();
    }
    if (!is_done) all_succeed();
  }

  void serve(int worker) {
    pthread_setname_np(pthread_self(), ("npu-team-" + std::to_string(worker)).c_str());
    std::uint32_t seen = 0;
    while (true) {
      wait_for_call(seen++);
      const bool is_last = is_dismissed_.load(std::memory_order_relaxed);
      take_part(worker);
      if (is_last) break;
    }
    left_.fetch_add(1, std::memory_order_release);
  }

  void wait_for_call(std::uint32_t seen) {
    const auto end = Clock::now() + kSpinTime;
    do {
      for (int spin = 0; spin < kSpinsPerLook; ++spin) {
        if (call_.load(std::memory_order_acquire) != seen) return;
        pause();
      }
    } while (Clock::now() < end);
    while (call_.load(std::memory_order_acquire) == seen)
      call_.wait(seen, std::memory_order_acquire);
  }

  alignas(64) std::atomic<int> arrived_{0};
  // How often all have met, times two; kFailed is set if one had failed then. It stands here, as
  // the next barrier cannot end before all have read it.
  static constexpr std::uint32_t kFailed = 1;
  alignas(64) std::atomic<std::uint32_t> phase_{0};
  alignas(64) std::atomic<std::uint32_t> call_{0};
  const Work* work_ = nullptr;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;  // the first one
  std::atomic<bool> is_dismissed_{false};
  std::atomic<int> left_{0};
};

// Never destroyed: its threads may still wait when the process ends.
struct Shared {
  std::mutex mutex;
  ThreadPool* pool = nullptr;
};

alignas(Shared) unsigned char shared_memory[sizeof(Shared)];
Shared* shared = nullptr;
bool is_child = false;  // of a process that had loaded this
std::once_flag made;

// A child has only the thread that forked: the parent's thread pool is left behind, not ended.
void start_anew() {
  shared = new (shared_memory) Shared;
}

// OpenMP's threads, which are torch's, spin for milliseconds after their work, on cores that
// workers need: those of the calling thread are let go. A greedy step of eight rows of SmolLM2-135M
// took 14 ms for that reason, and takes 5 (two Zen 5 cores, 2026-11-24). In a child OpenMP would
// wait for threads that only its parent has.
void release_openmp_threads() {
  using Pause = int (*)(int);
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  constexpr int kSoft = 1;
  if (pause != nullptr && !is_child) pause(kSoft);
}

Shared& the_shared() {
  std::call_once(made, [] {
    start_anew();
    // While the lock is held no worker works, so the child's memory is that of a thread pool at
    // rest.
    pthread_atfork([] { shared->mutex.lock(); }, [] { shared->mutex.unlock(); },
                   [] {
                     start_anew();
                     is_child = true;
                   });
  });
  return *shared;
}

// A fork is noticed from the beginning.
[[maybe_unused]] const Shared& at_load = the_shared();

// Processors' worth of time that a cgroup grants; 0 for no bound.
double quota_of_cgroup() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
  std::ifstream older("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream older_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double most = 0;
  if (older >> most && older_period >> period && most > 0 && period > 0) return most / period;
  return 0;
}

}  // namespace

void run_on_workers(int size, const Work& work) {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  if (all.pool == nullptr || all.pool->wanted != std::max(size, 1)) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every,
                    &before);  // a new thread inherits it: signals go to others
    try {
      if (all.pool != nullptr) {
        all.pool->dismiss();
        delete all.pool;
        all.pool = nullptr;
      }
      all.pool = new ThreadPool(std::max(size, 1));
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (all.pool->workers > 1) release_openmp_threads();
  all.pool->run(work);
}

void run_alone(const Work& work) {
  const std::lock_guard lock(the_shared().mutex);
  SingleWorker barrier;
  work(barrier, 0);
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  static const double quota = quota_of_cgroup();
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return std::max(count, 1);
}

int waiting_workers() {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  return all.pool == nullptr ? 0 : all.pool->workers - 1;
}

}  // namespace npu::ops::kernel_programs
