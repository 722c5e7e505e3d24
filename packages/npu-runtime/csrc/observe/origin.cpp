// The stacks of open ops and annotations, one pair for each thread.
#include "observe/origin.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

namespace npu::observe {

namespace {

// Deeper calls are counted but not distinguished: they belong to the deepest one kept.
constexpr std::size_t kMostKept = 64;

struct Stack {
  std::size_t depth;
  std::array<std::uint64_t, kMostKept> ids;

  std::uint64_t top() const noexcept {
    return depth == 0 ? 0 : ids[depth < kMostKept ? depth - 1 : kMostKept - 1];
  }
};

struct ThreadStacks {
  std::uint64_t window;
  std::array<Stack, 2> stacks;  // by Scope
};

std::atomic<std::uint64_t> current_window{0};
std::atomic<std::uint32_t> latest_work_id{0};

// Plain data, so that destructors of other thread-local objects may still emit.
thread_local ThreadStacks of_thread{};

// A window can end while an op is open, so the op's end is not reported.
ThreadStacks& stacks() noexcept {
  const std::uint64_t window = current_window.load(std::memory_order_relaxed);
  if (of_thread.window != window) {
    of_thread.window = window;
    for (Stack& stack : of_thread.stacks)
      stack.depth = 0;
  }
  return of_thread;
}

}  // namespace

void begin_window() noexcept {
  current_window.fetch_add(1, std::memory_order_relaxed);
}

void enter(Scope scope, std::uint64_t id) noexcept {
  Stack& stack = stacks().stacks[static_cast<std::size_t>(scope)];
  if (stack.depth < kMostKept) stack.ids[stack.depth] = id;
  ++stack.depth;
}

void leave(Scope scope) noexcept {
  Stack& stack = stacks().stacks[static_cast<std::size_t>(scope)];
  if (stack.depth != 0) --stack.depth;
}

std::uint32_t next_work_id() noexcept {
  // Torch numbers its ops from 1, and would match our event with an op of the same number.
  constexpr std::uint32_t kFirst = 1U << 30U;
  return kFirst | (latest_work_id.fetch_add(1, std::memory_order_relaxed) & (kFirst - 1));
}

std::int64_t thread_id() noexcept {
  thread_local const auto id = static_cast<std::int64_t>(syscall(SYS_gettid));
  return id;
}

Origin origin_at(std::int64_t time_ns) noexcept {
  const ThreadStacks& open = stacks();
  return {.thread_id = thread_id(),
          .time_ns = time_ns,
          .op_id = open.stacks[static_cast<std::size_t>(Scope::kOp)].top(),
          .annotation_id = open.stacks[static_cast<std::size_t>(Scope::kAnnotation)].top(),
          .work_id = next_work_id()};
}

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Origin here() noexcept {
  return origin_at(now_ns());
}

}  // namespace npu::observe
