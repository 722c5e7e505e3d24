// The address range of all device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "memory/size_class.h"

namespace npu::memory {

namespace detail {
extern std::uintptr_t arena_begin;
extern std::uintptr_t arena_end;
}  // namespace detail

// One subtraction and one comparison; false for all addresses until the arena exists.
inline bool arena_contains(const void* pointer) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address - detail::arena_begin < detail::arena_end - detail::arena_begin;
}

// Start and length of the arena, reserved by this call; {nullptr, 0} if the system refuses.
std::pair<void*, std::size_t> arena_range();

// Takes a range of reserved, inaccessible addresses; nullptr if none is long enough. Both arguments
// are multiples of the page; `alignment` is a power of two.
void* arena_take(std::size_t bytes, std::size_t alignment = kPage);

// Returns a range. The caller has made it inaccessible.
void arena_return(void* address, std::size_t bytes);

}  // namespace npu::memory
