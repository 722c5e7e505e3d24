// Size classes of the pool, so that a freed block fits the next request of about its size.
//
// Small blocks (up to 4 KiB) come in steps of 64 bytes up to 512 and then four to a doubling. Large
// ones are whole pages, eight classes to a doubling, so that at most an eighth is lost.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace npu::memory {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kSmallLimit = 4096;

struct SizeClass {
  std::uint16_t index;  // dense, over small and large together
  std::size_t bytes;    // usable bytes of a block of this class
};

namespace detail {

// Rounds `units` (at least 1) up to a number with at most `bits` leading binary digits, and numbers
// these from 0.
constexpr SizeClass round_to_digits(std::size_t units, unsigned bits) {
  const std::size_t steps = std::size_t{1} << (bits - 1);
  const auto top = static_cast<unsigned>(std::bit_width(units));
  if (top <= bits) return {static_cast<std::uint16_t>(units - 1), units};
  const unsigned shift = top - bits;
  const std::size_t digits = ((units - 1) >> shift) + 1;  // in [steps, 2 * steps]
  const std::size_t index = 2 * steps - 1 + shift * steps + (digits - 2 * steps);
  return {static_cast<std::uint16_t>(index), digits << shift};
}

}  // namespace detail

inline constexpr std::uint16_t kSmallClasses =
    detail::round_to_digits(kSmallLimit / 64, 3).index + 1;
inline constexpr std::uint16_t kClasses = kSmallClasses + 8 * 40;

constexpr SizeClass size_class(std::size_t bytes) {
  if (bytes <= kSmallLimit) {
    const SizeClass found = detail::round_to_digits((bytes + 63) / 64, 3);
    return {found.index, found.bytes * 64};
  }
  const SizeClass found = detail::round_to_digits((bytes + kPage - 1) / kPage, 4);
  return {static_cast<std::uint16_t>(kSmallClasses + found.index), found.bytes * kPage};
}

}  // namespace npu::memory
