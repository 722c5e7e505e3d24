// The lists of records between native code, which may not hold the GIL, and the listeners.
#include <pthread.h>

#include <mutex>
#include <utility>

#include "npu/observe.h"
#include "observe/buffer.h"
#include "observe/counter.h"
#include "observe/names.h"
#include "observe/origin.h"

namespace npu::observe {

namespace detail {
std::atomic<unsigned> listeners{0};
std::atomic<bool> are_kernels_wanted{false};
}  // namespace detail

namespace {

constexpr std::size_t kMostRecords = 1U << 20U;
constexpr std::size_t kPieceRecords = 1024;

bool do_python_listeners_want_kernels = true;  // with the buffer's lock

struct Buffer {
  std::mutex mutex;
  Drained python;
  Drained kineto;
};

// Never destroyed: a thread may emit while the process ends.
std::atomic<Buffer*> instance{new Buffer};

Buffer& buffer() {
  return *instance.load(std::memory_order_acquire);
}

// Another thread of the parent may have held the lock, and the parent reports its own events: a
// forked child starts with a new buffer.
void start_anew() {
  instance.store(new Buffer, std::memory_order_release);
  forget_names();
  begin_counters();
}

bool is_listening(Listener listener) {
  return (detail::listeners.load(std::memory_order_relaxed) & listener) != 0;
}

// Call it with the buffer's lock after its inputs have changed.
void decide_on_kernels() {
  const bool are_wanted =
      is_listening(kKineto) || (is_listening(kPython) && do_python_listeners_want_kernels);
  detail::are_kernels_wanted.store(are_wanted, std::memory_order_relaxed);
}

}  // namespace

void RecordList::push(const Record& record) {
  if (pieces_.empty() || pieces_.back().size() == kPieceRecords) {
    pieces_.emplace_back().reserve(kPieceRecords);
  }
  pieces_.back().push_back(record);
  ++size_;
}

void Drained::push(const Record& record) {
  if (records.size() < kMostRecords) {
    records.push(record);
  } else {
    ++dropped;
  }
}

void set_kernels_wanted(bool is_wanted) {
  const std::lock_guard lock(buffer().mutex);
  do_python_listeners_want_kernels = is_wanted;
  decide_on_kernels();
}

void emit_span(const Span& span, std::initializer_list<Arg> args) {
  if (!is_enabled()) return;
  const Origin emitter = origin_at(span.start_ns);
  Record record{.is_span = true,
                .is_enqueued = span.origin != nullptr,
                .arg_count = 0,
                .device_index = span.device_index,
                .stream = static_cast<std::int16_t>(span.stream),
                .category = intern(span.category),
                .name = intern(span.name),
                .start_ns = span.start_ns,
                .duration_ns = span.end_ns - span.start_ns,
                .thread_id = emitter.thread_id,
                .value = 0.0,
                .origin = span.origin != nullptr ? *span.origin : emitter,
                .args = {}};
  for (const Arg& arg : args) {
    if (record.arg_count == kMostArgs) break;
    record.args[record.arg_count++] = {arg.key, arg.kind, arg.value,
                                       arg.kind == Arg::Kind::kText ? intern(arg.string) : nullptr};
  }
  Buffer& to = buffer();
  const std::lock_guard lock(to.mutex);
  if (is_listening(kPython)) to.python.push(record);
  if (is_listening(kKineto)) to.kineto.push(record);
}

void with_python_records(c10::function_ref<void(Drained*)> body) {
  Buffer& of = buffer();
  const std::lock_guard lock(of.mutex);
  body(is_listening(kPython) ? &of.python : nullptr);
}

void set_listening(Listener listener, bool is_on) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &start_anew);
  Buffer& of = buffer();
  const std::lock_guard lock(of.mutex);
  if (is_on == is_listening(listener)) return;
  detail::listeners.fetch_xor(listener, std::memory_order_relaxed);
  (listener == kPython ? of.python : of.kineto) = {};
  if (listener == kPython) begin_counters();
  decide_on_kernels();
}

Drained drain(Listener listener) {
  Buffer& from = buffer();
  const std::lock_guard lock(from.mutex);
  if (listener == kPython) settle_counters(from.python);
  return std::exchange(listener == kPython ? from.python : from.kineto, {});
}

}  // namespace npu::observe
