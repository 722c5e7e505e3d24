// The team: the threads that run kernel programs, one team for the process.
//
// Between the parts of a piece of work its threads spin at a barrier, which takes 0.1 to 0.2 us on
// two cores; without work they spin for some tens of microseconds, then sleep. They take no
// signals, and a forked child starts with a team of its own.
#pragma once

#include <functional>

namespace npu::ops::kernel_programs {

// What a member of the team knows of the others while it works.
class Crew {
 public:
  virtual ~Crew() = default;
  // Waits until all members are here. What any of them wrote before is seen by all after. Throws if
  // a member has failed; `work` lets that pass.
  virtual void meet() = 0;
  int members = 1;
};

using Work = std::function<void(Crew& crew, int member)>;

// Runs `work` once on each of `members` threads, the caller's being member 0, and waits for all.
// Calls of several threads are queued. All members meet equally often. What one of them throws ends
// the others' work where they meet next, and is thrown here. `work` must not call this.
void run_together(int members, const Work& work);

// Runs `work` on the caller's thread alone, in the same queue; the team stays as it is.
void run_alone(const Work& work);

// How many threads this process can use: by its affinity, and by the quota of its cgroup.
int usable_processors();

// How many of the team's threads there are now, without the caller's.
int waiting_members();

}  // namespace npu::ops::kernel_programs
