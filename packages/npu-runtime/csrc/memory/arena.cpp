// Reserves addresses once and hands out ranges, best fit, coalescing free neighbours. The driver
// commits memory to them (npu_driver::memory_commit).
#include "memory/arena.h"

#include <sys/mman.h>

#include <iterator>
#include <map>
#include <mutex>

#include "memory/page_owners.h"

namespace npu::memory {

namespace detail {
std::uintptr_t arena_begin = 0;
std::uintptr_t arena_end = 0;
}  // namespace detail

namespace {

// Unused addresses are free, but a limit on address space (ulimit -v) can forbid many.
constexpr std::size_t kLargestArena = std::size_t{1} << 40U;
constexpr std::size_t kSmallestArena = std::size_t{1} << 28U;

struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> free;  // address -> bytes, no two adjacent
};

Ranges& ranges() {
  static auto* instance = [] {
    auto* made = new Ranges;
    for (std::size_t bytes = kLargestArena; bytes >= kSmallestArena; bytes /= 2) {
      void* base =
          mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) continue;
      if (!reserve_page_owners(reinterpret_cast<std::uintptr_t>(base), bytes)) {
        munmap(base, bytes);
        continue;
      }
      detail::arena_begin = reinterpret_cast<std::uintptr_t>(base);
      detail::arena_end = detail::arena_begin + bytes;
      made->free.emplace(detail::arena_begin, bytes);
      break;
    }
    return made;
  }();
  return *instance;
}

}  // namespace

std::pair<void*, std::size_t> arena_range() {
  ranges();
  return {reinterpret_cast<void*>(detail::arena_begin), detail::arena_end - detail::arena_begin};
}

void* arena_take(std::size_t bytes, std::size_t alignment) {
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  auto best = all.free.end();
  for (auto it = all.free.begin(); it != all.free.end(); ++it) {
    const std::uintptr_t aligned = (it->first + alignment - 1) & ~(alignment - 1);
    const std::size_t lost = aligned - it->first;
    if (lost + bytes <= it->second && (best == all.free.end() || it->second < best->second))
      best = it;
  }
  if (best == all.free.end()) return nullptr;
  const auto [begin, size] = *best;
  const std::uintptr_t aligned = (begin + alignment - 1) & ~(alignment - 1);
  all.free.erase(best);
  if (aligned != begin) all.free.emplace(begin, aligned - begin);
  if (aligned + bytes != begin + size)
    all.free.emplace(aligned + bytes, begin + size - aligned - bytes);
  return reinterpret_cast<void*>(aligned);
}

void arena_return(void* address, std::size_t bytes) {
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  auto [it, inserted] = all.free.emplace(reinterpret_cast<std::uintptr_t>(address), bytes);
  if (const auto next = std::next(it);
      next != all.free.end() && it->first + it->second == next->first) {
    it->second += next->second;
    all.free.erase(next);
  }
  if (it != all.free.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second == it->first) {
      before->second += it->second;
      all.free.erase(it);
    }
  }
}

}  // namespace npu::memory
