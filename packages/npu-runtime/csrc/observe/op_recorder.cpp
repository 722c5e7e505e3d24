// A callback of torch's RecordFunction, and a list of records for each thread.
#include "observe/op_recorder.h"

#include <ATen/record_function.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "npu/observe.h"
#include "observe/names.h"

namespace npu::observe {

namespace {

// Per thread. A listener that never drains must not fill the memory; what does not fit is counted.
constexpr std::size_t kMostRecords = 1U << 20U;
// Deeper calls are recorded, but count as the time of the deepest that is kept.
constexpr std::size_t kMostDepth = 64;

struct Kept {
  std::mutex mutex;
  ThreadOps ops;
  std::uint64_t dropped = 0;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Kept>> threads;
};

// Never destroyed: a thread may record while the process ends.
std::atomic<Registry*> registry{new Registry};
// Odd while recording: an op belongs to the window in which it began.
std::atomic<std::uint32_t> window{0};
std::mutex switching;
at::CallbackHandle handle = 0;

bool is_recording(std::uint32_t number) {
  return number % 2 == 1;
}

struct Frame {
  const std::string* name;
  std::int64_t child_ns;
};

struct Stack {
  std::size_t depth;
  std::array<Frame, kMostDepth> frames;
};

// Plain data, so that destructors of other thread-local objects may still run ops.
thread_local Stack stack{};
thread_local bool is_ending = false;

struct OpenOp final : at::ObserverContext {
  const std::string* name = nullptr;
  const Stack* thread = nullptr;  // only compared: an op may end on another thread
  std::size_t depth = 0;
  std::int64_t start_ns = 0;
  std::uint32_t window = 0;
  bool is_recursive = false;
};

std::shared_ptr<Kept> add_thread(Registry& to) {
  auto kept = std::make_shared<Kept>();
  kept->ops.thread_id = static_cast<std::int64_t>(syscall(SYS_gettid));
  kept->ops.torch_thread = at::RecordFunction::currentThreadId();
  const std::lock_guard lock(to.mutex);
  to.threads.push_back(kept);
  return kept;
}

struct Owner {
  Registry* in = nullptr;
  std::shared_ptr<Kept> kept;
  ~Owner() { is_ending = true; }
};

void keep(const OpRecord& record) {
  if (is_ending) return;
  thread_local Owner owner;
  Registry* const current = registry.load(std::memory_order_acquire);
  if (owner.in != current) {
    owner.kept = add_thread(*current);
    owner.in = current;
  }
  Kept& to = *owner.kept;
  const std::lock_guard lock(to.mutex);
  if (to.ops.records.size() < kMostRecords) {
    to.ops.records.push_back(record);
  } else {
    ++to.dropped;
  }
}

bool is_open(const std::string* name) {
  for (std::size_t i = 0; i < std::min(stack.depth, kMostDepth); ++i) {
    if (stack.frames[i].name == name) return true;
  }
  return false;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op) {
  auto open = std::make_unique<OpenOp>();
  open->window = window.load(std::memory_order_relaxed);
  open->name = intern(op.name());
  open->thread = &stack;
  open->depth = stack.depth;
  open->is_recursive = is_open(open->name);
  if (stack.depth < kMostDepth) stack.frames[stack.depth] = {open->name, 0};
  ++stack.depth;
  open->start_ns = now_ns();
  return open;
}

// Takes an op off this thread's stack, with what is above it; returns the time of those it called.
std::int64_t leave(const OpenOp& open, std::int64_t duration_ns) {
  if (open.thread != &stack || open.depth >= stack.depth) return 0;
  stack.depth = open.depth;
  if (open.depth >= kMostDepth) return 0;
  if (open.depth > 0) stack.frames[open.depth - 1].child_ns += duration_ns;
  return stack.frames[open.depth].child_ns;
}

OpKind kind_of(at::RecordScope scope) {
  switch (scope) {
    case at::RecordScope::BACKWARD_FUNCTION:
      return OpKind::kBackward;
    case at::RecordScope::USER_SCOPE:
      return OpKind::kAnnotation;
    default:
      return OpKind::kOp;
  }
}

void on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  const std::int64_t end_ns = now_ns();
  if (context == nullptr) return;
  const auto& open = static_cast<const OpenOp&>(*context);
  const std::int64_t duration_ns = end_ns - open.start_ns;
  const std::int64_t child_ns = leave(open, duration_ns);
  const std::uint32_t now = window.load(std::memory_order_relaxed);
  if (open.window != now || !is_recording(now)) return;
  const OpKind kind = kind_of(op.scope());
  keep({.name = open.name,
        .start_ns = open.start_ns,
        .duration_ns = duration_ns,
        .self_ns = duration_ns - child_ns,
        .sequence = op.seqNr(),
        .forward_thread = kind == OpKind::kBackward ? op.forwardThreadId() : 0,
        .kind = kind,
        .is_recursive = open.is_recursive});
}

void take(Kept& from, DrainedOps& to) {
  const std::lock_guard lock(from.mutex);
  to.dropped += std::exchange(from.dropped, 0);
  if (from.ops.records.empty()) return;
  to.threads.push_back(
      {from.ops.thread_id, from.ops.torch_thread, std::exchange(from.ops.records, {})});
}

// Another thread of the parent may have held a lock, and its ops are the parent's to tell.
void end_in_child() {
  if (is_recording(window.load(std::memory_order_relaxed))) ++window;
  registry.store(new Registry, std::memory_order_release);
}

}  // namespace

void start_ops() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &end_in_child);
  const std::lock_guard lock(switching);
  if (is_recording(window.load(std::memory_order_relaxed))) return;
  ++window;
  if (handle != 0) return;  // a forked child has its parent's
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_start, &on_end)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::USER_SCOPE}));
}

void stop_ops() {
  const std::lock_guard lock(switching);
  if (is_recording(window.load(std::memory_order_relaxed))) ++window;
  if (handle != 0) at::removeCallback(std::exchange(handle, 0));
}

DrainedOps drain_ops() {
  Registry& all = *registry.load(std::memory_order_acquire);
  DrainedOps drained;
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.threads, [&](const std::shared_ptr<Kept>& kept) {
    const bool has_ended = kept.use_count() == 1;  // read first: its last records are in then
    take(*kept, drained);
    return has_ended;
  });
  return drained;
}

}  // namespace npu::observe
