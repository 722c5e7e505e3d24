// Attention of queries to a piece of a cache, and the merge of pieces.
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

// Visible slots and score modifications of a query.
struct ScoreMask {
  float slope, soft_cap;
  std::int64_t piece_start, slot;  // of the piece, and the query's position
  int first, last;                 // of the piece's slots

  bool is_plain() const { return soft_cap == 0 && slope == 0 && first == 0 && last == kPieceSlots; }
};

// Caps and shifts the scores of one query, and masks them with -infinity.
inline void mask(float* scores, const ScoreMask& score_mask) {
  Floats places;
  for (int i = 0; i < kLanes; ++i)
    places[i] = static_cast<float>(i);
  for (int i = 0; i < kPieceSlots; i += kLanes) {
    Floats v = load(scores + i);
    if (score_mask.soft_cap != 0)
      v = score_mask.soft_cap * hyperbolic_tangent(v / score_mask.soft_cap);
    const Floats place = places + static_cast<float>(i);
    if (score_mask.slope != 0) {
      v +=
          score_mask.slope * (place + static_cast<float>(score_mask.piece_start - score_mask.slot));
    }
    const Integers seen = (place >= static_cast<float>(score_mask.first)) &
                          (place < static_cast<float>(score_mask.last));
    store(scores + i, seen ? v : all(-kInfinity));
  }
}

// Turns the scores of queries into exponentials in place, 0 for -infinity. First all maxima, then
// all exponentials, to overlap latencies of different queries.
inline void softmax(float* scores, int count, const PartialSums& out) {
  for (int q = 0; q < count; ++q) {
    Floats most = all(-kInfinity);
    for (int i = 0; i < kPieceSlots; i += kLanes)
      most = largest(most, load(scores + q * kPieceSlots + i));
    out.largest[q] = largest_of(most);
  }
  for (int q = 0; q < count; ++q) {
    const float shift = out.largest[q] == -kInfinity ? 0 : out.largest[q];
    float* of = scores + q * kPieceSlots;
    Floats sums = {};
#pragma GCC unroll 4
    for (int i = 0; i < kPieceSlots; i += kLanes) {
      const Floats v = exponential_to_one(load(of + i) - shift);
      sums += v;
      store(of + i, v);
    }
    out.sums[q] = sum(sums);
  }
}

// Writes the queries to `scratch` in the layout of `attend`.
template <typename T>
void ready_as(const LayerCache& cache, const Queries& queries, float scale, float* scratch) {
  const int size = cache.key_size;
  for (int row = 0; row < queries.rows; ++row) {
    const float* from = queries.values + row * queries.row_stride;
    float* to = scratch + std::size_t(row) * queries.group * size;
    for (int i = 0; i < queries.group * size; ++i)
      to[i] = from[i] * scale;
  }
  as_factors<T>(scratch, queries.rows * queries.group, size);
}

inline void ready(const LayerCache& cache, const Queries& queries, const AttendOptions& options,
                  float* scratch) {
  const auto kernel = cache.kind == CacheKind::float32    ? ready_as<float>
                      : cache.kind == CacheKind::bfloat16 ? ready_as<std::uint16_t>
                                                          : ready_as<std::uint8_t>;
  kernel(cache, queries, options.scale, scratch);
}

template <typename T>
void attend_as(const LayerCache& cache, int key_head, unsigned char* const* blocks,
               std::int64_t piece_start, std::int64_t piece_end, const Queries& queries,
               const AttendOptions& options, const PartialSums& out, float* scratch) {
  const int size = cache.key_size, count = queries.rows * queries.group;
  const int slots = static_cast<int>(piece_end - piece_start);
  const int block_count = (slots + kBlockSlots - 1) / kBlockSlots;
  float* scores = scratch + std::size_t(count) * size;
  const T* keys[kPieceSlots / kBlockSlots];
  Head<T> heads[kPieceSlots / kBlockSlots] = {{cache, blocks[0], key_head},
                                              {cache, blocks[0], key_head},
                                              {cache, blocks[0], key_head},
                                              {cache, blocks[0], key_head}};
  for (int b = 0; b < block_count; ++b) {
    heads[b] = Head<T>(cache, blocks[b], key_head);
    keys[b] = heads[b].keys;
  }
  all_scores(keys, block_count, factors_in<T>(scratch), count, size, scores);
  if constexpr (sizeof(T) == 1) {
    for (int q = 0; q < count; ++q) {
      float total = 0;
      for (int i = 0; i < size; ++i)
        total += scratch[std::size_t(q) * size + i];
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
    const ScoreMask score_mask{options.slopes == nullptr ? 0 : options.slopes[head],
                               options.soft_cap,
                               piece_start,
                               slot,
                               first,
                               last};
    if (!score_mask.is_plain()) mask(scores + q * kPieceSlots, score_mask);
    first_of_all = std::min(first_of_all, first);
    last_of_all = std::max(last_of_all, last);
  }
  softmax(scores, count, out);
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

// Queries' numbers are computed in vectors: one exponential takes as long as a vector of them.
inline void merge(const PartialSums& total, const PartialSums& piece, int queries, int padded) {
  for (int first = 0; first < queries; first += kLanes) {
    const int count = std::min(kLanes, queries - first);
    const Floats before = load_some(total.largest + first, count);
    const Floats now = load_some(piece.largest + first, count);
    const Floats top = largest(before, now);
    const Floats shift = top == -kInfinity ? all(0) : top;  // neither has a visible slot
    const Floats old_share = exponential(before - shift), new_share = exponential(now - shift);
    store_some(total.largest + first, top, count);
    store_some(total.sums + first,
               load_some(total.sums + first, count) * old_share +
                   load_some(piece.sums + first, count) * new_share,
               count);
    for (int q = 0; q < count; ++q) {
      float* to = total.values + std::size_t(first + q) * padded;
      const float* from = piece.values + std::size_t(first + q) * padded;
      for (int i = 0; i < padded; i += kLanes)
        store(to + i, load(to + i) * old_share[q] + load(from + i) * new_share[q]);
    }
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
