// Lets one or two workers of the thread pool fail between any two of their barriers, again and
// again.
#include <atomic>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "kernel_programs/thread_pool.h"

using namespace npu::ops::kernel_programs;

namespace {

constexpr int kBarriers = 4;

bool is_thrown_and_over(int workers, int failing, int other, int place) {
  std::atomic<int> inside{0};
  bool is_caught = false;
  try {
    run_on_workers(workers, [&](Barrier& barrier, int worker) {
      struct Inside {
        std::atomic<int>& count;
        explicit Inside(std::atomic<int>& count) : count(count) { ++count; }
        ~Inside() { --count; }
      } here(inside);
      for (int i = 0; i <= kBarriers; ++i) {
        if (i == place && worker == failing) throw std::bad_alloc();
        if (i == place && worker == other) throw std::runtime_error("other");
        if (i > place) std::puts("went on after a failure");
        if (i < kBarriers) barrier.wait();
      }
    });
  } catch (const std::bad_alloc&) {
    is_caught = true;
  } catch (const std::runtime_error&) {
    is_caught = other >= 0;
  }
  return is_caught && inside == 0;
}

bool is_done_by_all(int workers) {
  std::atomic<int> met{0};
  run_on_workers(workers, [&](Barrier& barrier, int) {
    for (int i = 0; i < kBarriers; ++i) {
      ++met;
      barrier.wait();
    }
  });
  return met == workers * kBarriers;
}

}  // namespace

int main() {
  for (int workers = 1; workers <= 4; ++workers) {
    for (int round = 0; round < 200; ++round) {
      const int failing = round % workers, place = round / workers % (kBarriers + 1);
      const int other = round % 3 == 0 ? (failing + 1) % workers : -1;
      if (!is_thrown_and_over(workers, failing, other, place) || !is_done_by_all(workers)) {
        std::printf("%d workers, worker %d at barrier %d\n", workers, failing, place);
        return 1;
      }
    }
  }
  std::puts("ok");
}
