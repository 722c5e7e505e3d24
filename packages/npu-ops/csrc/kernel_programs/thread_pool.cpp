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

#include "kernel_programs/core_placement.h"

namespace npu::ops::kernel_programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpinTime = std::chrono::microseconds(60);  // before an idle worker sleeps
constexpr int kSpinsPerLook = 64;  // reading the clock costs more than spinning
constexpr auto kShortestPatience = std::chrono::microseconds(4);   // see ThreadPool::wait
constexpr auto kSpinTimeOfStage = std::chrono::microseconds(100);  // before a waiting worker yields
constexpr int kPieceBits = 24;  // bits of a count; its other bits are the stage's epoch
constexpr std::uint64_t kPieceMask = (std::uint64_t{1} << kPieceBits) - 1;
constexpr int kSlots = 4;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts the stages of all jobs of the process, and continues in a forked child, so that a piece's
// state never refers to a later stage.
std::uint64_t epoch_of_next_job = 1;

void run_in_order(Job& job) {
  for (int stage = 0; stage < static_cast<int>(job.stages.size()); ++stage) {
    const auto [pieces, is_repeatable, most_together] = job.stages[stage];
    for (int first = 0; first < pieces; first += most_together) {
      const int end = std::min(first + most_together, pieces);
      if (is_repeatable) job.compute(stage, first, end, 0);
      job.commit(stage, first, end, 0);
    }
    job.end_stage(stage);
  }
}

}  // namespace

class ThreadPool {
 public:
  explicit ThreadPool(int wanted)
      : wanted(wanted),
        workers(wanted),
        placement_(wanted),
        parts_(std::make_unique<Part[]>(wanted)),
        done_(std::make_unique<Done[]>(wanted)) {
    for (int worker = 1; worker < wanted; ++worker) {
      try {
        std::thread([this, worker] { serve(worker); }).detach();
      } catch (const std::exception&) {  // no more threads or memory: continue with fewer
        workers = worker;
        break;
      }
    }
  }

  const int wanted;  // requested number of workers
  int workers;

  void run(Job& job) {
    if (workers == 1) return run_in_order(job);
    placement_.look(workers);
    prepare(job);
    const std::uint32_t number = call_.load(std::memory_order_relaxed) + 1;
    Slot& slot = slots_[number % kSlots];
    vacate(slot);
    slot.job = &job;
    slot.number.store(number);
    call_.store(number, std::memory_order_release);
    call_.notify_all();
    take_part(job, 0);
    epoch_of_next_job = job.first_epoch_ + job.stages.size();
  }

  void retire(const Job& job) {
    for (Slot& slot : slots_) {
      if (slot.job == &job) vacate(slot);
    }
  }

  std::vector<int> threads() const { return placement_.threads(workers); }

  // Ends the other workers, which then release this object.
  void dismiss() {
    is_dismissed_.store(true, std::memory_order_relaxed);
    call_.fetch_add(1, std::memory_order_release);
    call_.notify_all();
    while (left_.load(std::memory_order_acquire) != workers - 1)
      sched_yield();
  }

 private:
  // A job, and the number of workers inside or allowed in. A descheduled worker may return while
  // later jobs run, which then have other slots.
  struct alignas(64) Slot {
    std::atomic<std::uint32_t> number{0};  // of the call; 0 if closed
    std::atomic<int> inside{0};
    Job* job = nullptr;
  };

  static void vacate(Slot& slot) {
    slot.number.store(0);
    while (slot.inside.load() != 0)
      sched_yield();
    slot.job = nullptr;
  }

  static void prepare(Job& job) {
    int most = 0;
    for (const Job::Stage& stage : job.stages)
      most = std::max(most, stage.pieces);
    if (most > job.room_) {
      job.room_ = 0;
      job.claims_ = std::make_unique<std::atomic<std::uint64_t>[]>(most);
      job.room_ = most;
    }
    job.first_epoch_ = epoch_of_next_job;
  }

  // A thread's part of the current stage: the next piece, with the stage's epoch.
  struct alignas(64) Part {
    std::atomic<std::uint64_t> next{0};
  };
  // Number of pieces done by a thread, with the epoch of their stage.
  struct alignas(64) Done {
    std::atomic<std::uint64_t> pieces{0};
  };

  void take_part(Job& job, int worker) {
    const int stages = static_cast<int>(job.stages.size());
    for (int stage = 0; stage < stages; ++stage) {
      const StageRun run{job, stage, job.first_epoch_ + stage, worker};
      if (!is_over(run)) do_stage(run);
      if (worker == 0) job.end_stage(stage);
    }
  }

  struct StageRun {
    Job& job;
    int stage;
    std::uint64_t epoch;
    int worker;
    const Job::Stage& size() const { return job.stages[stage]; }
  };

  // Whether all pieces are done, or later ones are. Their writes are then visible.
  bool is_over(const StageRun& run) const {
    int done = 0;
    for (int worker = 0; worker < workers; ++worker) {
      const std::uint64_t of_worker = done_[worker].pieces.load(std::memory_order_acquire);
      if (of_worker >> kPieceBits > run.epoch) return true;
      if (of_worker >> kPieceBits == run.epoch) done += static_cast<int>(of_worker & kPieceMask);
    }
    return done >= run.size().pieces;
  }

  void do_stage(const StageRun& run) {
    const Clock::time_point began = Clock::now();
    int done = 0, times = 0;
    for (int i = 0; i < workers; ++i) {
      const int whose = (run.worker + i) % workers;
      for (std::pair<int, int> pieces; (pieces = take(run, whose)).first < pieces.second; ++times)
        do_pieces(run, pieces.first, pieces.second, done);
    }
    if (is_over(run)) return;
    const Clock::time_point now = Clock::now();
    wait(run, now, (now - began) / std::max(times, 1), done);
  }

  // Takes the next pieces of a worker's part: half of the remaining ones.
  std::pair<int, int> take(const StageRun& run, int whose) {
    const auto [pieces, is_repeatable, most_together] = run.size();
    std::atomic<std::uint64_t>& next = parts_[whose].next;
    const int begin = pieces * whose / workers, end = pieces * (whose + 1) / workers;
    std::uint64_t before = next.load(std::memory_order_relaxed);
    while (true) {
      if (before >> kPieceBits > run.epoch) return {};
      const bool is_begun = before >> kPieceBits == run.epoch;
      const int first = is_begun ? static_cast<int>(before & kPieceMask) : begin;
      if (first >= end) return {};
      const int count = std::clamp((end - first) / 2, 1, most_together);
      const std::uint64_t after = (run.epoch << kPieceBits) + first + count;
      if (next.compare_exchange_weak(before, after, std::memory_order_relaxed)) {
        return {first, first + count};
      }
    }
  }

  // Adds this worker's finished pieces to `done`.
  void do_pieces(const StageRun& run, int first, int end, int& done) {
    if (run.size().is_repeatable) run.job.compute(run.stage, first, end, run.worker);
    while (first < end) {
      int last = first;
      while (last < end && claim(run, last))
        ++last;
      if (last > first) {
        run.job.commit(run.stage, first, last, run.worker);
        done += last - first;
        done_[run.worker].pieces.store((run.epoch << kPieceBits) + done, std::memory_order_release);
      }
      first = last + 1;
    }
  }

  // Whether no other worker has the piece.
  static bool claim(const StageRun& run, int piece) {
    std::atomic<std::uint64_t>& claimed = run.job.claims_[piece];
    std::uint64_t before = claimed.load(std::memory_order_relaxed);
    return before < run.epoch &&
           claimed.compare_exchange_strong(before, run.epoch, std::memory_order_relaxed);
  }

  // Waits for the end of a stage after all its pieces are taken. A piece that is later than usual
  // is computed again: its worker may have lost its core for milliseconds.
  void wait(const StageRun& run, Clock::time_point now, Clock::duration patience, int done) {
    const auto spin_until = [&](Clock::time_point end) {
      do {
        for (int spin = 0; spin < kSpinsPerLook; ++spin) {
          if (is_over(run)) return true;
          pause();
        }
      } while (Clock::now() < end);
      return false;
    };
    if (spin_until(now + std::max<Clock::duration>(kShortestPatience, patience))) return;
    const int pieces = run.size().pieces;
    for (int i = 0; i < pieces && !is_over(run); ++i) {
      const int piece = (i + run.worker) % pieces;
      if (run.job.claims_[piece].load(std::memory_order_relaxed) < run.epoch) {
        do_pieces(run, piece, piece + 1, done);
      }
    }
    if (spin_until(now + kSpinTimeOfStage)) return;
    while (!is_over(run))
      sched_yield();
  }

  void serve(int worker) {
    pthread_setname_np(pthread_self(), ("npu-team-" + std::to_string(worker)).c_str());
    placement_.start(worker);
    std::uint32_t seen = 0;
    while (true) {
      seen = wait_for_call(seen);
      if (is_dismissed_.load(std::memory_order_relaxed)) break;
      Slot& slot = slots_[seen % kSlots];
      placement_.note(worker);
      slot.inside.fetch_add(1);
      if (slot.number.load() == seen) take_part(*slot.job, worker);
      slot.inside.fetch_sub(1, std::memory_order_release);
    }
    left_.fetch_add(1, std::memory_order_release);
  }

  // The number of the newest call that this worker has not seen.
  std::uint32_t wait_for_call(std::uint32_t seen) {
    const auto end = Clock::now() + kSpinTime;
    std::uint32_t now = seen;
    do {
      for (int spin = 0; spin < kSpinsPerLook; ++spin) {
        now = call_.load(std::memory_order_acquire);
        if (now != seen) return now;
        pause();
      }
    } while (Clock::now() < end);
    while ((now = call_.load(std::memory_order_acquire)) == seen)
      call_.wait(seen, std::memory_order_acquire);
    return now;
  }

  CorePlacement placement_;
  const std::unique_ptr<Part[]> parts_;
  const std::unique_ptr<Done[]> done_;
  alignas(64) std::atomic<std::uint32_t> call_{0};
  std::atomic<bool> is_dismissed_{false};
  std::atomic<int> left_{0};
  Slot slots_[kSlots];
};

namespace {

// Never destroyed: its threads may still wait at process exit.
struct Shared {
  std::mutex mutex;
  ThreadPool* pool = nullptr;
};

alignas(Shared) unsigned char shared_memory[sizeof(Shared)];
Shared* shared = nullptr;
bool is_child = false;  // of a process that had loaded this library
std::once_flag made;

// A child has only the forking thread: the parent's thread pool is abandoned, not ended.
void start_anew() {
  shared = new (shared_memory) Shared;
}

// OpenMP's threads, which are torch's, spin for milliseconds after their work, on cores that
// workers need: those of the calling thread are released. A greedy step of eight rows of
// SmolLM2-135M took 14 ms for that reason, and takes 5 (two Zen 5 cores, 2026-11-24). In a child,
// OpenMP would wait for threads that only its parent has.
void release_openmp_threads() {
  using Pause = int (*)(int);
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  constexpr int kSoft = 1;
  if (pause != nullptr && !is_child) pause(kSoft);
}

Shared& the_shared() {
  std::call_once(made, [] {
    start_anew();
    // No worker runs while the lock is held, so the child has a copy of an idle thread pool.
    pthread_atfork([] { shared->mutex.lock(); }, [] { shared->mutex.unlock(); },
                   [] {
                     start_anew();
                     is_child = true;
                   });
  });
  return *shared;
}

// Handlers of fork are installed from the start.
[[maybe_unused]] const Shared& at_load = the_shared();

// CPU quota of the cgroup in processors; 0 for no limit.
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

void run_job(Job& job, int size) {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  if (all.pool == nullptr || all.pool->wanted != std::max(size, 1)) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every,
                    &before);  // new threads inherit it: signals go to others
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
  all.pool->run(job);
}

void run_alone(Job& job) {
  const std::lock_guard lock(the_shared().mutex);
  run_in_order(job);
}

void retire(const Job& job) {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  if (all.pool != nullptr) all.pool->retire(job);
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  static const double quota = quota_of_cgroup();
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return std::max(count, 1);
}

std::vector<int> worker_threads() {
  Shared& all = the_shared();
  const std::lock_guard lock(all.mutex);
  return all.pool == nullptr ? std::vector<int>() : all.pool->threads();
}

}  // namespace npu::ops::kernel_programs
