// Interned strings: a table for all threads, behind a small per-thread cache.
#include "observe/names.h"

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_set>

namespace npu::observe {

namespace {

struct Table {
  std::mutex mutex;
  std::unordered_set<std::string> names;  // nodes do not move when it grows
};

// Never destroyed: a thread may emit while the process ends.
std::atomic<Table*> table{new Table};

}  // namespace

const std::string* intern(std::string_view text) {
  // Plain pointers, so that destructors of other thread-local objects may still emit.
  constexpr std::size_t kSlots = 64;
  thread_local std::array<const std::string*, kSlots> cache{};
  const std::string*& slot = cache[std::hash<std::string_view>{}(text) % kSlots];
  if (slot != nullptr && *slot == text) return slot;
  Table& all = *table.load(std::memory_order_acquire);
  const std::lock_guard lock(all.mutex);
  slot = &*all.names.emplace(text).first;
  return slot;
}

void forget_names() {
  table.store(new Table, std::memory_order_release);
}

}  // namespace npu::observe
