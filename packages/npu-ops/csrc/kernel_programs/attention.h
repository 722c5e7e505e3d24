// Attention of some queries to a piece of a cache, and of pieces to one result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernel_programs/attention_products.h"
#include "kernel_programs/cached_head.h"
#include "kernel_programs/row_kernels.h"
#include "kernel_programs/vectors.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Turns the scores of one query into exponentials in place, 0 where it may not look.
inline void softmax(float* scores, float own_slope, float soft_cap, std::int64_t piece_start,
                    int first, int last, std::int64_t slot, float* largest_score, float* total) {
  Floats places;
  for (int i = 0; i < kLanes; ++i)
    places[i] = static_cast<float>(i);
  Floats most = all(-kInfinity);
  const bool is_plain = soft_cap == 0 && own_slope == 0 && first == 0 && last == kPieceSlots;
  for (int i = 0; i < kPieceSlots; i += kLanes) {
    Floats v = load(scores + i);
    if (is_plain) {
      most = largest(most, v);
      continue;
    }
    if (soft_cap != 0) v = soft_cap * hyperbolic_tangent(v / soft_cap);
    const Floats place = places + static_cast<float>(i);
    if (own_slope != 0) v += own_slope * (place + static_cast<float>(piece_start - slot));
    const Integers seen = (place >= static_cast<float>(first)) & (place < static_cast<float>(last));
    v = seen ? v : all(-kInfinity);
    most = largest(most, v);
    store(scores + i, v);
  }
  const float top = largest_of(most);
  const float shift = top == -kInfinity ? 0 : top;
  Floats sums = {};
  for (int i = 0; i < kPieceSlots; i += kLanes) {
    const Floats v = exponential_to_one(load(scores + i) - shift);
    sums += v;
    store(scores + i, v);
  }
  *largest_score = top;
  *total = sum(sums);
}

template <typename T>
void attend_as(const LayerCache& cache, int key_head, unsigned char* const* blocks,
               std::int64_t piece_start, std::int64_t piece_end, const Queries& queries,
               const AttendOptions& options, const PartialSums& out, float* scratch) {
  const int size = cache.key_size, count = queries.rows * queries.group;
  const int slots = static_cast<int>(piece_end - piece_start);
  const int block_count = (slots + kBlockSlots - 1) / kBlockSlots;
  float* scaled = scratch;
  float* sums_of_query = scaled + std::size_t(count) * size;
  float* scores = sums_of_query + count;
  for (int row = 0; row < queries.rows; ++row) {
    const float* from = queries.values + row * queries.row_stride;
    float* to = scaled + std::size_t(row) * queries.group * size;
    for (int i = 0; i < queries.group * size; ++i)
      to[i] = from[i] * options.scale;
  }
  const T* keys[kPieceSlots / kBlockSlots];
  Head<T> heads[kPieceSlots / kBlockSlots] = {{cache, blocks[0], key_head},
                                              {cache, blocks[0], key_head},
                                              {cache, blocks[0], key_head},
                                              {cache, blocks[0], key_head}};
  for (int b = 0; b < block_count; ++b) {
    heads[b] = Head<T>(cache, blocks[b], key_head);
    keys[b] = heads[b].keys;
  }
  all_scores(keys, block_count, as_factors<T>(scaled, count, size), count, size, scores);
  if constexpr (sizeof(T) == 1) {
    for (int q = 0; q < count; ++q) {
      float total = 0;
      for (int i = 0; i < size; ++i)
        total += scaled[std::size_t(q) * size + i];
      for (int b = 0; b < block_count; ++b) {
        float* of = scores + q * kPieceSlots + b * kBlockSlots;
        for (int i = 0; i < kBlockSlots; ++i) {
          of[i] = of[i] * heads[b].key_scales[i] + total * heads[b].key_scales[kBlockSlots + i];
        }
      }
    }
  }
  int first_of_all = slots, last_of_all = 0;
  for (int q = 0; q < count; ++q) {
    const std::int64_t slot = queries.first_slot + q / queries.group;
    const std::int64_t begin =
        options.window > 0 ? std::max<std::int64_t>(0, slot - options.window + 1) : 0;
    const int first = static_cast<int>(std::clamp<std::int64_t>(begin - piece_start, 0, slots));
    const int last = static_cast<int>(std::clamp<std::int64_t>(slot + 1 - piece_start, 0, slots));
    const int head = queries.first_head + q % queries.group;
    softmax(scores + q * kPieceSlots, options.slopes == nullptr ? 0 : options.slopes[head],
            options.soft_cap, piece_start, first, last, slot, out.largest + q, out.sums + q);
    first_of_all = std::min(first_of_all, first);
    last_of_all = std::max(last_of_all, last);
  }
  all_values(heads, cache.padded_value_size(), first_of_all, last_of_all,
             as_factors<T>(scores, count, kPieceSlots), count, out.values);
}

inline void attend(const LayerCache& cache, int key_head, unsigned char* const* blocks,
                   std::int64_t piece_start, std::int64_t piece_end, const Queries& queries,
                   const AttendOptions& options, const PartialSums& out, float* scratch) {
  const auto kernel = cache.kind == CacheKind::float32    ? attend_as<float>
                      : cache.kind == CacheKind::bfloat16 ? attend_as<std::uint16_t>
                                                          : attend_as<std::uint8_t>;
  kernel(cache, key_head, blocks, piece_start, piece_end, queries, options, out, scratch);
}

inline float one_exponential(float x) {
  return exponential(all(x))[0];
}

inline void merge(const PartialSums& total, const PartialSums& piece, int queries, int padded) {
  for (int q = 0; q < queries; ++q) {
    const float top = std::max(total.largest[q], piece.largest[q]);
    if (top == -kInfinity) continue;  // neither sees anything
    const float before = one_exponential(total.largest[q] - top);
    const float now = one_exponential(piece.largest[q] - top);
    total.largest[q] = top;
    total.sums[q] = total.sums[q] * before + piece.sums[q] * now;
    float* to = total.values + std::size_t(q) * padded;
    const float* from = piece.values + std::size_t(q) * padded;
    for (int i = 0; i < padded; i += kLanes)
      store(to + i, load(to + i) * before + load(from + i) * now);
  }
}

inline void finish(const PartialSums& total, const LayerCache& cache, const Queries& queries,
                   const AttendOptions& options, float* out, std::size_t out_stride) {
  const int size = cache.value_size, padded = cache.padded_value_size();
  for (int q = 0; q < queries.rows * queries.group; ++q) {
    const int head = queries.first_head + q % queries.group;
    float factor = 1, sum_of_all = total.sums[q];
    if (options.sinks != nullptr) {
      const float top = std::max(total.largest[q], options.sinks[head]);
      factor = one_exponential(total.largest[q] - top);
      sum_of_all = sum_of_all * factor + one_exponential(options.sinks[head] - top);
    }
    const float* from = total.values + std::size_t(q) * padded;
    float* to = out + (q / queries.group) * out_stride + std::size_t(q % queries.group) * size;
    for (int i = 0; i < size; ++i)
      to[i] = from[i] * factor / sum_of_all;
  }
}

}  // namespace npu::ops::kernel_programs::NPU_SET
