// The record of live blocks. Stacks are torch's own captured tracebacks, which cost microseconds to
// take and are turned into text only when somebody reads them.
#include "memory/trace.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace npu::memory::trace {

namespace detail {
std::atomic<bool> recording{false};
}  // namespace detail

namespace {

struct Record {
  std::mutex mutex;
  std::map<std::uint64_t, LiveBlock> by_age;
  std::unordered_map<std::size_t, std::uint64_t> age_of;  // by address
  std::uint64_t next_age = 0;
};

Record& record() {
  static auto* instance = new Record;
  return *instance;
}

std::size_t address_of(const Block& block) {
  return reinterpret_cast<std::size_t>(const_cast<Block&>(block).data());
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

void record_allocation(const Block& block) {
  // Before the lock: taking the stack needs Python's.
  auto stack = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  const std::uint64_t age = all.next_age++;
  all.age_of[address_of(block)] = age;
  all.by_age[age] = {address_of(block), block.requested_bytes, block.device_index,
                     std::move(stack)};
}

void record_free(const Block& block) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
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

}  // namespace npu::memory::trace
