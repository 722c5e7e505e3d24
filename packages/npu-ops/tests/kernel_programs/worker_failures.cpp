// Lets one or two members of the team fail between any two of their meetings, again and again.
#include <atomic>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "kernel_programs/team.h"

using namespace npu::ops::kernel_programs;

namespace {

constexpr int kMeetings = 4;

bool is_thrown_and_over(int members, int failing, int other, int meeting) {
  std::atomic<int> inside{0};
  bool is_caught = false;
  try {
    run_together(members, [&](Crew& crew, int member) {
      struct Inside {
        std::atomic<int>& count;
        explicit Inside(std::atomic<int>& count) : count(count) { ++count; }
        ~Inside() { --count; }
      } here(inside);
      for (int i = 0; i <= kMeetings; ++i) {
        if (i == meeting && member == failing) throw std::bad_alloc();
        if (i == meeting && member == other) throw std::runtime_error("other");
        if (i > meeting) std::puts("went on after a failure");
        if (i < kMeetings) crew.meet();
      }
    });
  } catch (const std::bad_alloc&) {
    is_caught = true;
  } catch (const std::runtime_error&) {
    is_caught = other >= 0;
  }
  return is_caught && inside == 0;
}

bool is_done_by_all(int members) {
  std::atomic<int> met{0};
  run_together(members, [&](Crew& crew, int) {
    for (int i = 0; i < kMeetings; ++i) {
      ++met;
      crew.meet();
    }
  });
  return met == members * kMeetings;
}

}  // namespace

int main() {
  for (int members = 1; members <= 4; ++members) {
    for (int round = 0; round < 200; ++round) {
      const int failing = round % members, meeting = round / members % (kMeetings + 1);
      const int other = round % 3 == 0 ? (failing + 1) % members : -1;
      if (!is_thrown_and_over(members, failing, other, meeting) || !is_done_by_all(members)) {
        std::printf("%d members, member %d at meeting %d\n", members, failing, meeting);
        return 1;
      }
    }
  }
  std::puts("ok");
}
