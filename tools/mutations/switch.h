// Switches of drawn C++ mutations: included by each instrumented file.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

// Returns whether mutation `number` is selected; reports the running test where hits are recorded.
inline bool npu_mutant(int number) {
  static const char* const selected = std::getenv("NPU_MUTANT");
  static const int chosen = selected == nullptr ? -1 : std::atoi(selected);
  static const char* const folder = std::getenv("NPU_MUTATION_HITS");
  if (folder == nullptr) return number == chosen;
  static thread_local char last[128][256];
  static thread_local long last_ns[128];
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const long now_ns = now.tv_sec * 1000000000L + now.tv_nsec;
  if (now_ns == last_ns[number]) return false;  // looks at most once a tick: hot loops call this
  last_ns[number] = now_ns;
  const char* test = std::getenv("PYTEST_CURRENT_TEST");
  if (test == nullptr) test = "import";
  if (std::strncmp(last[number], test, 255) != 0) {
    std::strncpy(last[number], test, 255);
    char place[512];
    std::snprintf(place, sizeof place, "%s/%d-native", folder, static_cast<int>(getpid()));
    if (FILE* file = std::fopen(place, "a")) {
      std::fprintf(file, "%d\t%s\n", number, test);
      std::fclose(file);
    }
  }
  return false;
}
