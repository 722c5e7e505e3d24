#include "kernel_programs/team.h"

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

constexpr auto kSpinTime = std::chrono::microseconds(60);  // before a member without work sleeps
constexpr int kSpinsPerLook = 64;      // looks at the clock are dearer than spins
constexpr int kSpinsAtBarrier = 4000;  // some 100 us: then another process has our processor

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One thread that works without a team.
struct Alone final : Crew {
  void meet() override {}
};

struct Abandoned {};  // thrown where members meet after one of them has failed

class Team final : public Crew {
 public:
  explicit Team(int wanted) : wanted(wanted) {
    members = wanted;
    for (int member = 1; member < wanted; ++member) {
      try {
        std::thread([this, member] { serve(member); }).detach();
      } catch (const std::exception&) {  // no more threads or memory: fewer do the work
        members = member;
        break;
      }
    }
  }

  const int wanted;  // how many members were asked for

  void run(const Work& work) {
    work_ = &work;
    call_.fetch_add(1, std::memory_order_release);
    call_.notify_all();
    take_part(0);
    if (!has_failed_.load(std::memory_order_relaxed)) return;
    has_failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // Ends the other members, who then let go of this object.
  void dismiss() {
    const Work leave = [](Crew&, int) {};
    is_dismissed_.store(true, std::memory_order_relaxed);
    run(leave);
    while (left_.load(std::memory_order_acquire) != members - 1)
      sched_yield();
  }

  void meet() override {
    if (members > 1 && !all_succeed()) throw Abandoned{};
  }

 private:
  // Waits for all members; whether none has failed before it came here.
  bool all_succeed() {
    const std::uint32_t now = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == members - 1) {
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

  // A member that fails goes where the others meet next, or end; they learn it there. In the end
  // nobody looks at the work any more.
  void take_part(int member) {
    bool is_done = false;
    try {
      (*work_)(*this, member);
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

  void serve(int member) {
    pthread_setname_np(pthread_self(), ("npu-team-" + std::to_string(member)).c_str());
    std::uint32_t seen = 0;
    while (true) {
      wait_for_call(seen++);
      const bool is_last = is_dismissed_.load(std::memory_order_relaxed);
      take_part(member);
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
  // the next meeting cannot end before all have read it.
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
  Team* team = nullptr;
};

alignas(Shared) unsigned char shared_memory[sizeof(Shared)];
Shared* shared = nullptr;
bool is_child = false;  // of a process that had loaded this
std::once_flag made;

// A child has only the thread that forked: the parent's team is left behind, not ended.
void start_anew() {
  shared = new (shared_memory) Shared;
}

// OpenMP's threads, which are torch's, spin for milliseconds after their work, on cores that
// members need: those of the calling thread are let go. A greedy step of eight rows of SmolLM2-135M
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
    // While the lock is held no member works, so the child's memory is that of a team at rest.
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

void run_together(int size, const Work& work) {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  if (all.team == nullptr || all.team->wanted != std::max(size, 1)) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every,
                    &before);  // a new thread inherits it: signals go to others
    try {
      if (all.team != nullptr) {
        all.team->dismiss();
        delete all.team;
        all.team = nullptr;
      }
      all.team = new Team(std::max(size, 1));
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (all.team->members > 1) release_openmp_threads();
  all.team->run(work);
}

void run_alone(const Work& work) {
  const std::lock_guard lock(the_shared().mutex);
  Alone crew;
  work(crew, 0);
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  static const double quota = quota_of_cgroup();
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return std::max(count, 1);
}

int waiting_members() {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  return all.team == nullptr ? 0 : all.team->members - 1;
}

}  // namespace npu::ops::kernel_programs
