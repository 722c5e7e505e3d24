// Bounds of a block's keys, and of a query's scores with them.
//
// Least and largest of each channel, as in Quest (arXiv 2406.10774): no key of the block has a
// greater product with a query q than the sum over channels of max(q least, q largest).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernel_programs/cached_head.h"

namespace npu::ops::kernel_programs::NPU_SET {

// The largest bfloat16 at or below a number; NaN for NaN.
inline std::uint16_t rounded_down(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool moves = (bits & 0xFFFF) != 0 && (bits >> 31) != 0;
  return static_cast<std::uint16_t>((bits >> 16) + (moves ? 1 : 0));
}

inline std::uint16_t rounded_up(float value) {
  return rounded_down(-value) ^ 0x8000;
}

inline float stored_key(const Head<float>& head, int channel, int slot) {
  return head.keys[std::size_t(channel) * kBlockSlots + slot];
}

inline float stored_key(const Head<std::uint16_t>& head, int channel, int slot) {
  const std::uint32_t bits = head.keys[std::size_t(channel) * kBlockSlots + slot];
  return std::bit_cast<float>(bits << 16);
}

inline float stored_key(const Head<std::uint8_t>& head, int channel, int slot) {
  const float level = head.keys[std::size_t(channel) * kBlockSlots + slot];
  return level * head.key_scales[slot] + head.key_scales[kBlockSlots + slot];
}

template <typename T>
void note_bounds_as(const LayerCache& cache, unsigned char* block) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int padded = cache.padded_key_size();
  for (int head = 0; head < cache.key_heads; ++head) {
    const Head<T> at(cache, block, head);
    auto* lower = reinterpret_cast<std::uint16_t*>(block + cache.bounds_offset(head));
    std::uint16_t* upper = lower + padded;
    for (int channel = 0; channel < cache.key_size; ++channel) {
      float least = kInfinity, most = -kInfinity, bad = 0;
      for (int slot = 0; slot < kBlockSlots; ++slot) {
        const float key = stored_key(at, channel, slot);
        least = std::min(least, key);
        most = std::max(most, key);
        bad += key != key ? 1.0F : 0.0F;
      }
      // NaN keys must be attended to, to propagate: their bound is infinite.
      lower[channel] = rounded_down(bad > 0 ? -kInfinity : least);
      upper[channel] = rounded_up(bad > 0 ? kInfinity : most);
    }
    std::fill(lower + cache.key_size, upper, std::uint16_t{0});
    std::fill(upper + cache.key_size, upper + padded, std::uint16_t{0});
  }
}

inline void note_bounds(const LayerCache& cache, unsigned char* block) {
  switch (cache.kind) {
    case CacheKind::float32:
      return note_bounds_as<float>(cache, block);
    case CacheKind::bfloat16:
      return note_bounds_as<std::uint16_t>(cache, block);
    case CacheKind::u8:
      return note_bounds_as<std::uint8_t>(cache, block);
  }
}

inline void bound(const LayerCache& cache, int key_head, const unsigned char* block,
                  const float* queries, int count, float* out, std::size_t stride) {
  const int padded = cache.padded_key_size();
  const auto* lower = reinterpret_cast<const std::uint16_t*>(block + cache.bounds_offset(key_head));
  const std::uint16_t* upper = lower + padded;
  for (int q = 0; q < count; ++q) {
    const float* query = queries + std::size_t(q) * padded;
    Floats sums = {};
    for (int i = 0; i < padded; i += kLanes) {
      const Floats one = load(query + i);
      sums += largest(one * load(lower + i), one * load(upper + i));
    }
    const float total = sum(sums);
    out[q * stride] = total == total ? total : std::numeric_limits<float>::infinity();
  }
}

}  // namespace npu::ops::kernel_programs::NPU_SET
