// Runs jobs on threads some of which are late, and checks what the thread pool promises.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "kernel_programs/core_placement.h"
#include "kernel_programs/thread_pool.h"

using namespace npu::ops::kernel_programs;
using Clock = std::chrono::steady_clock;

namespace {

void require(bool is_so, const char* what) {
  if (is_so) return;
  std::puts(what);
  std::exit(1);
}

// Each piece takes its value from all of the stage before, so a piece that is missing, done twice
// or read too early changes every later one.
class Sums final : public Job {
 public:
  Sums(std::vector<Stage> shape, int workers) : own_(workers) {
    stages = std::move(shape);
    for (const Stage& stage : stages)
      values.emplace_back(stage.pieces), commits.emplace_back(stage.pieces);
  }

  void compute(int stage, int first, int end, int worker) noexcept override {
    own_[worker].assign(end, 0);
    for (int piece = first; piece < end; ++piece)
      own_[worker][piece] = value(stage, piece);
    if (be_late) be_late(stage, first, worker);
  }
  void commit(int stage, int first, int end, int worker) noexcept override {
    for (int piece = first; piece < end; ++piece) {
      values[stage][piece] =
          stages[stage].is_repeatable ? own_[worker][piece] : value(stage, piece);
      ++commits[stage][piece];
    }
  }
  void end_stage(int) noexcept override { ++ended; }

  std::uint64_t value(int stage, int piece) const {
    std::uint64_t sum = piece + 1;
    if (stage > 0) {
      for (std::uint64_t value : values[stage - 1])
        sum = sum * 31 + value;
    }
    return sum;
  }
  std::uint64_t result() const {
    std::uint64_t sum = 0;
    for (const auto& stage : values)
      for (std::uint64_t value : stage)
        sum = sum * 17 + value;
    return sum;
  }

  std::vector<std::vector<std::uint64_t>> values;
  std::vector<std::vector<int>> commits;
  int ended = 0;
  void (*be_late)(int stage, int piece, int worker) = nullptr;

 private:
  std::vector<std::vector<std::uint64_t>> own_;
};

std::vector<Job::Stage> random_shape(std::mt19937& random) {
  std::vector<Job::Stage> shape(1 + random() % 12);
  for (Job::Stage& stage : shape) {
    stage = {.pieces = static_cast<int>(1 + random() % 40),
             .is_repeatable = random() % 3 != 0,
             .most_together = static_cast<int>(1 + random() % 6)};
  }
  return shape;
}

void now_and_then(int stage, int piece, int worker) {
  if ((stage * 7 + piece * 3 + worker) % 5 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(30 * (1 + worker)));
  }
}

void every_piece_is_written_once_whoever_is_late(int rounds) {
  std::mt19937 random(3);
  for (int round = 0; round < rounds; ++round) {
    const auto shape = random_shape(random);
    const int workers = 1 + static_cast<int>(random() % 4);
    Sums alone(shape, 1), together(shape, workers);
    run_alone(alone);
    if (round % 4 == 0) together.be_late = now_and_then;
    run_job(together, workers);
    retire(together);
    require(together.result() == alone.result(), "other results");
    require(together.ended == static_cast<int>(shape.size()), "a stage did not end");
    for (const auto& stage : together.commits)
      for (int count : stage)
        require(count == 1, "a piece was not written once");
  }
}

constexpr auto kAway = std::chrono::milliseconds(300);
std::atomic<int> away{0};

void away_once(int stage, int, int worker) {
  if (stage == 0 && worker == 0) std::this_thread::sleep_for(kAway / 10);  // the other one comes
  if (stage == 1 && worker == 1 && away.exchange(1) == 0) {
    std::this_thread::sleep_for(kAway);
    away = 2;
  }
}

void a_worker_that_is_away_is_gone_around_and_waited_for_before_memory_goes() {
  for (int attempt = 0; attempt < 20; ++attempt) {
    away = 0;
    Sums job(std::vector<Job::Stage>(4, {.pieces = 64, .is_repeatable = true}), 2);
    job.be_late = away_once;
    const auto began = Clock::now();
    run_job(job, 2);
    const auto took = Clock::now() - began;
    const bool was_away = away == 1;
    retire(job);
    if (!was_away) continue;  // worker 1 had not come yet
    require(took < kAway / 2, "the others waited for a worker that was away");
    require(away == 2, "retire did not wait");
    return;
  }
  require(false, "no worker was away");
}

cpu_set_t cores_of(int thread) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(thread, sizeof cores, &cores);
  return cores;
}

void a_worker_that_shares_the_callers_core_is_sent_away_for_a_while() {
  const cpu_set_t allowed = cores_of(0);
  if (CPU_COUNT(&allowed) < 2) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);  // both stay on one core until the worker has said so
  CorePlacement placement(2);
  std::atomic<bool> is_there{false}, is_over{false};
  std::thread worker([&] {
    placement.start(1), placement.note(1);
    is_there = true;
    while (!is_over)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (!is_there)
    sched_yield();
  const int thread = placement.threads(2).at(0);
  bool is_sent = false;
  for (int attempt = 0; attempt < 100 && !is_sent; ++attempt) {
    sched_setaffinity(0, sizeof one, &one);
    sched_setaffinity(0, sizeof allowed, &allowed);
    placement.look(2);
    const cpu_set_t now = cores_of(thread);
    is_sent = CPU_EQUAL(&now, &one) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // it looks some times a second
  }
  require(is_sent, "a worker stayed on the caller's core");
  sched_setaffinity(0, sizeof one, &one);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  placement.look(2);
  const cpu_set_t back = cores_of(thread);
  require(CPU_EQUAL(&back, &one), "a worker does not have the caller's cores again");
  is_over = true;
  worker.join();
  sched_setaffinity(0, sizeof allowed, &allowed);
}

void a_child_has_a_pool_of_its_own() {
  const pid_t child = fork();
  if (child == 0) {
    every_piece_is_written_once_whoever_is_late(20);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  require(status == 0, "a forked child failed");
}

}  // namespace

int main() {
  every_piece_is_written_once_whoever_is_late(300);
  a_worker_that_is_away_is_gone_around_and_waited_for_before_memory_goes();
  a_worker_that_shares_the_callers_core_is_sent_away_for_a_while();
  a_child_has_a_pool_of_its_own();
  std::puts("ok");
}
