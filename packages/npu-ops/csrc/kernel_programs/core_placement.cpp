#include "kernel_programs/core_placement.h"

#include <sys/resource.h>
#include <unistd.h>

namespace npu::ops::kernel_programs {
namespace {

constexpr auto kTimeOfLook = std::chrono::milliseconds(25);
constexpr auto kTimeAway = std::chrono::seconds(1);
constexpr int kContended = 3;  // preemptions between checks; short-lived wakeups cause one or two

}  // namespace

CorePlacement::CorePlacement(int workers) : members_(std::make_unique<Member[]>(workers)) {}

void CorePlacement::start(int worker) {
  members_[worker].thread.store(gettid(), std::memory_order_relaxed);
}

void CorePlacement::note(int worker) {
  members_[worker].core.store(sched_getcpu(), std::memory_order_relaxed);
}

void CorePlacement::look(int workers) {
  const Clock::time_point now = Clock::now();
  if (now < look_at_) return;
  look_at_ = now + kTimeOfLook;
  note(0);
  const bool was_preempted = is_preempted();
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int worker = 1; worker < workers; ++worker) {
    Member& member = members_[worker];
    if (member.back_at == Clock::time_point{} || now < member.back_at) continue;
    sched_setaffinity(member.thread.load(), sizeof allowed, &allowed);
    member.back_at = {};
  }
  if (CPU_COUNT(&allowed) < 2) return;
  if (separate(workers, allowed, now) || !was_preempted || now < swap_at_) return;
  // The system moves the caller to the released core.
  swap_at_ = now + kTimeAway;
  next_ = next_ % (workers - 1) + 1;
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(members_[0].core.load(), &core);
  send(next_, core, now);
}

std::vector<int> CorePlacement::threads(int workers) const {
  std::vector<int> ids;
  for (int worker = 1; worker < workers; ++worker)
    ids.push_back(members_[worker].thread.load());
  return ids;
}

// Moves each worker that shares a core with an earlier one to an unused core.
bool CorePlacement::separate(int workers, const cpu_set_t& allowed, Clock::time_point now) {
  cpu_set_t free = allowed, used;
  CPU_ZERO(&used);
  for (int worker = 0; worker < workers; ++worker) {
    const int core = members_[worker].core.load(std::memory_order_relaxed);
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &free);
  }
  bool is_any = false;
  for (int worker = 0; worker < workers; ++worker) {
    const int core = members_[worker].core.load(std::memory_order_relaxed);
    if (core < 0 || core >= CPU_SETSIZE) continue;
    if (CPU_ISSET(core, &used) && CPU_COUNT(&free) > 0) {
      send(worker, free, now);
      is_any = true;
    }
    CPU_SET(core, &used);
  }
  return is_any;
}

void CorePlacement::send(int worker, const cpu_set_t& cores, Clock::time_point now) {
  const int thread = members_[worker].thread.load();
  if (thread != 0 && sched_setaffinity(thread, sizeof cores, &cores) == 0) {
    members_[worker].back_at = now + kTimeAway;
  }
}

// Whether the caller lost its core repeatedly since the last check.
bool CorePlacement::is_preempted() {
  rusage usage;
  const int caller = gettid();
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return false;
  const long preemptions = usage.ru_nivcsw - preemptions_;
  preemptions_ = usage.ru_nivcsw;
  const bool is_same = caller == caller_;
  caller_ = caller;
  return is_same && preemptions >= kContended;
}

}  // namespace npu::ops::kernel_programs
