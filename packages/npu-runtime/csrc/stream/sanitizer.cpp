// Vector clocks per stream, event and block. One lock: this is a debugging tool, not built for
// speed.
#include "stream/sanitizer.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "npu/allocator.h"
#include "npu/error.h"
#include "npu/host_access.h"
#include "npu/stream.h"
#include "stream/stream_state.h"

namespace npu::sanitizer {

namespace detail {
std::atomic<bool> enabled{false};
}  // namespace detail

namespace {

using Stack = std::shared_ptr<torch::CapturedTraceback>;

// For each stream, the number of its latest program known to be done before.
using Clock = std::array<std::uint64_t, kStreams>;

struct Use {
  c10::StreamId stream = -1;  // -1: never
  std::uint64_t tick = 0;
  std::string program;
  Stack stack;
};

struct History {
  Use last_write;
  std::vector<Use> reads;  // since that write, the latest of each stream
};

struct State {
  std::mutex mutex;
  std::unordered_map<int, std::array<Clock, kStreams>> clocks;  // work that the host has waited for
  std::unordered_map<int, Clock> host;                          // work that the host has waited for
  std::unordered_map<const npu_event*, Clock> events;
  std::unordered_map<const Block*, History> blocks;
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

void merge(Clock& into, const Clock& from) {
  for (std::size_t i = 0; i < into.size(); ++i)
    into[i] = std::max(into[i], from[i]);
}

Clock& clock_of(State& all, const stream::StreamState& stream) {
  return all.clocks[stream.device_index()].at(static_cast<std::size_t>(stream.id()));
}

std::string text_of(const Stack& stack) {
  if (stack == nullptr) return "    (no Python stack)\n";
  const torch::SymbolizedTracebacks traced = torch::symbolize({stack.get()});
  std::ostringstream text;
  for (const std::uint64_t index : traced.tracebacks.at(0)) {
    const auto& frame = traced.all_frames.at(index);
    text << "    " << frame.filename << ':' << frame.lineno << " in " << frame.funcname << '\n';
  }
  return text.str();
}

// Two unordered uses of a block.
struct Race {
  const char* now_does;
  const char* then_did;
  Use now;
  Use then;
};

// Formatting stacks runs Python, which may free device memory and call this code again: no lock may
// be held.
[[noreturn]] void raise_race(const Race& race) {
  const Use& now = race.now;
  const Use& then = race.then;
  throw Error(ErrorKind::kProgram, "stream-race",
              "program " + now.program + " on stream " + std::to_string(now.stream) + " " +
                  race.now_does + " memory that program " + then.program + " on stream " +
                  std::to_string(then.stream) + " " + race.then_did +
                  ", and the two are not ordered. Call stream.wait_stream(other) or "
                  "stream.wait_event(event) before the second.\n  now, on stream " +
                  std::to_string(now.stream) + ":\n" + text_of(now.stack) + "  before, on stream " +
                  std::to_string(then.stream) + ":\n" + text_of(then.stack));
}

bool is_ordered(const Clock& clock, const Use& now, const Use& then) {
  if (then.stream < 0 || then.stream == now.stream) return true;
  return clock.at(static_cast<std::size_t>(then.stream)) >= then.tick;
}

std::optional<Race> read(History& history, const Clock& clock, const Use& use) {
  if (!is_ordered(clock, use, history.last_write))
    return Race{"reads", "writes", use, history.last_write};
  const auto same = std::find_if(history.reads.begin(), history.reads.end(),
                                 [&](const Use& other) { return other.stream == use.stream; });
  if (same != history.reads.end()) {
    *same = use;
  } else {
    history.reads.push_back(use);
  }
  return std::nullopt;
}

std::optional<Race> write(History& history, const Clock& clock, const Use& use) {
  if (!is_ordered(clock, use, history.last_write))
    return Race{"writes", "writes", use, history.last_write};
  for (const Use& other : history.reads) {
    if (!is_ordered(clock, use, other)) return Race{"writes", "reads", use, other};
  }
  history.last_write = use;
  history.reads.clear();
  return std::nullopt;
}

Block* block_behind(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone() || tensor.numel() == 0) return nullptr;
  return block_of(tensor.storage().data());
}

std::optional<Race> note_program(const stream::StreamState& stream, Use& use,
                                 const std::vector<at::Tensor>& reads,
                                 const std::vector<at::Tensor>& writes) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Clock& clock = clock_of(all, stream);
  merge(clock, all.host[stream.device_index()]);
  use.tick = ++clock.at(static_cast<std::size_t>(stream.id()));
  std::optional<Race> race;
  for (const at::Tensor& tensor : reads) {
    const Block* block = block_behind(tensor);
    if (block != nullptr && !race) race = read(all.blocks[block], clock, use);
  }
  for (const at::Tensor& tensor : writes) {
    const Block* block = block_behind(tensor);
    if (block != nullptr && !race) race = write(all.blocks[block], clock, use);
  }
  return race;
}

}  // namespace

void set_enabled(bool is_on) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.clocks.clear();
  all.host.clear();
  all.events.clear();
  all.blocks.clear();
  // Host code must take the slow path to record its wait, even without pending work.
  const bool was_on = detail::enabled.exchange(is_on);
  npu::detail::host_access_level.fetch_add(static_cast<int>(is_on) - static_cast<int>(was_on));
}

void on_program(const stream::StreamState& stream, const std::string& name,
                const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
  if (!is_enabled()) return;
  // Before the lock: capturing the stack needs the GIL.
  Use use{stream.id(), 0, name, torch::CapturedTraceback::gather(true, false, false)};
  if (const auto race = note_program(stream, use, reads, writes)) raise_race(*race);
}

void on_event_record(const npu_event* event, const stream::StreamState& stream) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.events[event] = clock_of(all, stream);
}

void on_event_wait(const npu_event* event, const stream::StreamState& stream) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.events.find(event); found != all.events.end()) {
    merge(clock_of(all, stream), found->second);
  }
}

void on_event_synchronize(const npu_event* event) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.events.find(event);
  if (found == all.events.end()) return;
  for (auto& [device, host] : all.host)
    merge(host, found->second);
}

void on_event_destroy(const npu_event* event) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.events.erase(event);
}

void on_stream_synchronize(const stream::StreamState& stream) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  merge(all.host[stream.device_index()], clock_of(all, stream));
}

void on_host_access(const Block& block) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(&block);
  if (found == all.blocks.end()) return;
  Clock& host = all.host[block.device_index];
  const auto note = [&](const Use& use) {
    if (use.stream < 0) return;
    auto& known = host.at(static_cast<std::size_t>(use.stream));
    known = std::max(known, use.tick);
  };
  note(found->second.last_write);
  for (const Use& use : found->second.reads)
    note(use);
}

void on_free(const Block& block) {
  if (!is_enabled()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.blocks.erase(&block);
}

}  // namespace npu::sanitizer
