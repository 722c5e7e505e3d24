// A callback of torch's RecordFunction. An op costs 0.1 us including torch's call, so it takes no
// lock, and does not allocate or copy text.
#include "observe/op_recorder.h"

#include <ATen/record_function.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "observe/names.h"
#include "observe/op_clock.h"
#include "observe/op_queue.h"

namespace npu::observe {

namespace {

// Deeper calls are recorded, but count as time of the deepest frame kept.
constexpr std::size_t kMostDepth = 64;

// Odd while recording: an op belongs to the window in which it began.
std::atomic<std::uint32_t> window{0};
std::mutex switching;
at::CallbackHandle handle = 0;

bool is_recording(std::uint32_t number) {
  return number % 2 == 1;
}

// A running op.
struct Frame {
  const at::RecordFunction* op;  // only compared
  const std::string* name;
  Ticks start;
  Ticks in_children;
  std::uint32_t window;
  OpKind kind;
  bool is_recursive;
};

// The names of a thread's ops by the address of their text. An address may be reused for another
// text, so both are compared.
class NameCache {
 public:
  const std::string* find(const char* text) {
    Slot& slot = slots_[(reinterpret_cast<std::uintptr_t>(text) >> 4U) % kSlots];
    if (slot.text != text || std::strcmp(slot.name->c_str(), text) != 0) {
      slot = {text, intern(text)};
    }
    return slot.name;
  }

 private:
  static constexpr std::size_t kSlots = 256;
  struct Slot {
    const char* text = nullptr;
    const std::string* name = nullptr;
  };
  std::array<Slot, kSlots> slots_;
};

struct Registry;

// A thread with ops. A drain after its end deletes it.
struct Thread {
  explicit Thread(Registry& of) : in(&of) {}

  Registry* const in;
  const std::int64_t id = static_cast<std::int64_t>(syscall(SYS_gettid));
  const std::uint64_t torch_id = at::RecordFunction::currentThreadId();
  std::atomic<bool> has_ended{false};
  std::size_t depth = 0;
  std::array<Frame, kMostDepth> frames{};
  NameCache names;
  OpQueue finished;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Thread>> threads;
  OpClock clock;
};

// Never destroyed: a thread may record while the process ends.
std::atomic<Registry*> registry{new Registry};

// Plain data, so that destructors of other thread-local objects may still run ops.
thread_local Thread* own = nullptr;
thread_local bool is_ending = false;

struct End {
  ~End() {
    is_ending = true;
    if (own != nullptr) own->has_ended.store(true, std::memory_order_release);
    own = nullptr;
  }
};

Thread* add_thread(Registry& to) {
  if (is_ending) return nullptr;
  thread_local End end;
  auto made = std::make_unique<Thread>(to);
  own = made.get();
  const std::lock_guard lock(to.mutex);
  to.threads.push_back(std::move(made));
  return own;
}

Thread* this_thread() {
  Thread* const known = own;
  Registry* const current = registry.load(std::memory_order_acquire);
  if (known != nullptr && known->in == current) return known;
  return add_thread(*current);
}

// For an op that exceeds the frames, or that may end on another thread.
struct OpenOp final : at::ObserverContext {
  Frame frame{};
};

bool is_open(const Thread& thread, const std::string* name) {
  for (std::size_t i = 0; i < thread.depth; ++i) {
    if (thread.frames[i].name == name) return true;
  }
  return false;
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

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op) {
  Thread* const thread = this_thread();
  if (thread == nullptr) return nullptr;
  const std::string* const name = thread->names.find(op.name());
  const bool is_recursive = is_open(*thread, name);
  const std::uint32_t now = window.load(std::memory_order_relaxed);
  const bool has_place = thread->depth < kMostDepth;
  std::unique_ptr<OpenOp> open;
  const OpKind kind = kind_of(op.scope());
  if (!has_place || kind == OpKind::kAnnotation) open = std::make_unique<OpenOp>();
  const Frame frame{&op, name, now_ticks(), 0, now, kind, is_recursive};
  if (open != nullptr) open->frame = frame;
  if (has_place) thread->frames[thread->depth++] = frame;
  return open;
}

// Pops an op and the ops above it from this thread's frames. Returns nothing if it is not there.
const Frame* leave(Thread& thread, const at::RecordFunction& op, Ticks end) {
  std::size_t depth = thread.depth;
  while (depth > 0 && thread.frames[depth - 1].op != &op)
    --depth;
  if (depth == 0) return nullptr;
  thread.depth = depth - 1;
  const Frame& left = thread.frames[depth - 1];
  if (depth > 1) thread.frames[depth - 2].in_children += end - left.start;
  return &left;
}

FinishedOp finished_op(const Frame& frame, Ticks end) {
  return {.name = frame.name,
          .start = frame.start,
          .end = end,
          .in_children = frame.in_children,
          .sequence = -1,
          .forward_thread = 0,
          .kind = frame.kind,
          .is_recursive = frame.is_recursive};
}

void on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  const Ticks end = now_ticks();
  Thread* const thread = this_thread();
  if (thread == nullptr) return;
  const Frame* frame = leave(*thread, op, end);
  if (frame == nullptr) {
    if (context == nullptr) return;
    frame = &static_cast<const OpenOp&>(*context).frame;
  }
  const std::uint32_t now = window.load(std::memory_order_relaxed);
  if (frame->window != now || !is_recording(now)) return;
  FinishedOp finished = finished_op(*frame, end);
  finished.sequence = op.seqNr();
  if (frame->kind == OpKind::kBackward) finished.forward_thread = op.forwardThreadId();
  thread->finished.push(finished);
}

// For the end of a recording: the step that ends it may be an annotation of the calling thread.
void end_annotations(Thread& of) {
  const Ticks end = now_ticks();
  const std::uint32_t now = window.load(std::memory_order_relaxed);
  for (std::size_t depth = of.depth; depth > 0; --depth) {
    const Frame& frame = of.frames[depth - 1];
    if (depth > 1) of.frames[depth - 2].in_children += end - frame.start;
    if (frame.window == now && frame.kind == OpKind::kAnnotation)
      of.finished.push(finished_op(frame, end));
  }
}

OpRecord record_of(const FinishedOp& op, const OpClock& clock) {
  const std::int64_t start_ns = clock.time_of(op.start);
  const std::int64_t duration_ns = clock.time_of(op.end) - start_ns;
  const double own_share = op.end == op.start ? 1.0
                                              : 1.0 - static_cast<double>(op.in_children) /
                                                          static_cast<double>(op.end - op.start);
  return {.name = op.name,
          .start_ns = start_ns,
          .duration_ns = duration_ns,
          .self_ns = static_cast<std::int64_t>(own_share * static_cast<double>(duration_ns)),
          .sequence = op.sequence,
          .forward_thread = op.forward_thread,
          .kind = op.kind,
          .is_recursive = op.is_recursive};
}

// Another thread of the parent may have held a lock, and the parent reports its own ops.
void end_in_child() {
  if (is_recording(window.load(std::memory_order_relaxed))) ++window;
  registry.store(new Registry, std::memory_order_release);
}

void read_clocks() {
  Registry& all = *registry.load(std::memory_order_acquire);
  const std::lock_guard lock(all.mutex);
  all.clock.read_both();
}

}  // namespace

void start_ops() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &end_in_child);
  const std::lock_guard lock(switching);
  if (is_recording(window.load(std::memory_order_relaxed))) return;
  read_clocks();
  ++window;
  if (handle != 0) return;  // a forked child has its parent's
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_start, &on_end)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::USER_SCOPE}));
}

void stop_ops() {
  const std::lock_guard lock(switching);
  if (is_recording(window.load(std::memory_order_relaxed))) {
    if (Thread* const thread = this_thread()) end_annotations(*thread);
    ++window;
  }
  if (handle != 0) at::removeCallback(std::exchange(handle, 0));
}

DrainedOps drain_ops() {
  Registry& all = *registry.load(std::memory_order_acquire);
  DrainedOps drained;
  const std::lock_guard lock(all.mutex);
  if (all.threads.empty()) return drained;
  all.clock.read_both();
  std::erase_if(all.threads, [&](const std::unique_ptr<Thread>& thread) {
    // Read first: its last ops are complete then.
    const bool has_ended = thread->has_ended.load(std::memory_order_acquire);
    ThreadOps ops{thread->id, thread->torch_id, {}};
    thread->finished.drain(
        [&](const FinishedOp& op) { ops.records.push_back(record_of(op, all.clock)); });
    drained.dropped += thread->finished.take_dropped();
    if (!ops.records.empty()) drained.threads.push_back(std::move(ops));
    return has_ended;
  });
  return drained;
}

}  // namespace npu::observe
