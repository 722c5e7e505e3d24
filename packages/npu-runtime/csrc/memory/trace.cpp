// The record of live blocks and of actions. Stacks are torch's captured tracebacks, which take
// microseconds to capture and are symbolized only when read. Frees are recorded without: they
// happen on threads that must not wait for the GIL.
#include "memory/trace.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

namespace npu::memory::trace {

namespace detail {
std::atomic<bool> recording{false};
std::atomic<bool> keeps_history{false};
}  // namespace detail

namespace {

struct Record {
  std::mutex mutex;
  std::map<std::uint64_t, LiveBlock> by_age;
  std::unordered_map<std::size_t, std::uint64_t> age_of;  // by address
  std::uint64_t next_age = 0;
  std::deque<Entry> history;
  std::size_t most_entries = 0;

  // Precondition: the lock is held.
  void note(Entry entry) {
    if (most_entries == 0) return;
    if (history.size() == most_entries) history.pop_front();
    history.push_back(std::move(entry));
  }
};

Record& record() {
  static auto* instance = new Record;
  return *instance;
}

std::size_t address_of(const Block& block) {
  return reinterpret_cast<std::size_t>(const_cast<Block&>(block).data());
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<torch::CapturedTraceback> take_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

}  // namespace

void set_recording(bool is_on) {
  detail::recording.store(is_on);
  if (is_on) return;
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.by_age.clear();
  all.age_of.clear();
}

void set_history(std::size_t most) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.history.clear();
  all.most_entries = most;
  detail::keeps_history.store(most != 0);
}

void record_allocation(const Block& block) {
  auto stack = take_stack();  // before the lock: it needs the GIL
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  const std::uint64_t age = all.next_age++;
  all.age_of[address_of(block)] = age;
  all.by_age[age] = {address_of(block), block.requested_bytes, block.device_index, stack};
  all.note({Action::kAlloc, address_of(block), block.size_bytes, block.device_index, now_us(),
            std::move(stack)});
}

void record_free(const Block& block) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.note({Action::kFree, address_of(block), block.size_bytes, block.device_index, now_us(), {}});
  const auto found = all.age_of.find(address_of(block));
  if (found == all.age_of.end()) return;  // allocated before recording began
  all.by_age.erase(found->second);
  all.age_of.erase(found);
}

std::vector<LiveBlock> live_blocks() {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  std::vector<LiveBlock> blocks;
  blocks.reserve(all.by_age.size());
  for (const auto& [age, block] : all.by_age)
    blocks.push_back(block);
  return blocks;
}

std::vector<Entry> history() {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  return {all.history.begin(), all.history.end()};
}

void note_segment(Action action, const void* address, std::size_t bytes,
                  std::int16_t device_index) {
  if (!has_history()) return;
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.note({action, reinterpret_cast<std::size_t>(address), bytes, device_index, now_us(), {}});
}

void note_out_of_memory(std::size_t bytes, std::size_t free_bytes, std::int16_t device_index) {
  if (!has_history()) return;
  auto stack = take_stack();
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.note({Action::kOutOfMemory, free_bytes, bytes, device_index, now_us(), std::move(stack)});
}

}  // namespace npu::memory::trace
