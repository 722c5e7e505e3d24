// The row kernels of one instruction set; compiled once for each (CMakeLists.txt).
#include "kernel_programs/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernel_programs/activation_vectors.h"
#include "kernel_programs/key_bounds.h"

namespace npu::ops::kernel_programs::NPU_SET {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVectorsOfBlock = kBlockSlots / kLanes;

// Norms

float mean_of_squares(const float* x, int width) {
  Floats sums[4] = {};
  int i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Floats v = load(x + i + j * kLanes);
      sums[j] += v * v;
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const Floats v = load(x + i);
    sums[0] += v * v;
  }
  if (i < width) {
    const Floats v = load_some(x + i, width - i);
    sums[1] += v * v;
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(width);
}

float mean(const float* x, int width) {
  Floats total = {};
  int i = 0;
  for (; i + kLanes <= width; i += kLanes)
    total += load(x + i);
  if (i < width) total += load_some(x + i, width - i);
  return sum(total) / static_cast<float>(width);
}

void norm_part(const float* x, int width, const NormOptions& options, float* out) {
  float shift = 0;
  if (!options.is_rms) {
    shift = mean(x, width);
    for (int i = 0; i < width; ++i)
      out[i] = x[i] - shift;
    x = out;
  }
  const float factor = 1.0F / std::sqrt(mean_of_squares(x, width) + options.eps);
  for (int i = 0; i < width; i += kLanes) {
    const int count = std::min(kLanes, width - i);
    Floats v = (count == kLanes ? load(x + i) : load_some(x + i, count)) * factor;
    if (options.weight != nullptr) v *= load_some(options.weight + i, count);
    if (options.bias != nullptr) v += load_some(options.bias + i, count);
    store_some(out + i, v, count);
  }
}

void norm(const float* x, int width, const NormOptions& options, float* out) {
  const int part = width / options.parts;
  for (int i = 0; i < options.parts; ++i)
    norm_part(x + i * part, part, options, out + i * part);
}

void rotate(float* x, int heads, int size, const float* own, const float* other,
            const std::int32_t* partner) {
  float turned[kMostHeadSize];
  for (int head = 0; head < heads; ++head, x += size) {
    for (int i = 0; i < size; ++i)
      turned[i] = own[i] * x[i] + other[i] * x[partner[i]];
    std::memcpy(x, turned, size * sizeof(float));
  }
}

// Combinations

void combine(float* out, const float* left, const float* right, bool multiplies,
             Activation activation, float factor, int width) {
  for (int i = 0; i < width; i += kLanes) {
    const int count = std::min(kLanes, width - i);
    Floats v = activated(load_some(left + i, count), activation) * factor;
    if (right != nullptr) {
      const Floats w = load_some(right + i, count);
      v = multiplies ? v * w : v + w;
    }
    store_some(out + i, v, count);
  }
}

// The cache

std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void write(const float* from, int count, int stride, float* to, float*, int) {
  for (int i = 0; i < count; ++i)
    to[i * stride] = from[i];
}

void write(const float* from, int count, int stride, std::uint16_t* to, float*, int) {
  for (int i = 0; i < count; ++i)
    to[i * stride] = to_bfloat16(from[i]);
}

void write(const float* from, int count, int stride, std::uint8_t* to, float* scales, int slot) {
  float least = from[0], most = from[0], bad = 0;
  for (int i = 0; i < count; ++i) {
    least = std::min(least, from[i]);
    most = std::max(most, from[i]);
    bad += from[i] - from[i];  // NaN for NaN and infinities, which must not become numbers
  }
  const float scale = (most - least) / 255.0F + bad;
  const float inverse = scale > 0 ? 1.0F / scale : 0.0F;
  for (int i = 0; i < count; ++i) {
    const float level = std::nearbyint((from[i] - least) * inverse);
    to[i * stride] = level > 0 ? static_cast<std::uint8_t>(std::min(level, 255.0F)) : 0;
  }
  scales[slot] = scale;
  scales[kBlockSlots + slot] = least;
}

template <typename T>
void append_as(const LayerCache& cache, unsigned char* block, int slot, const float* keys,
               const float* values) {
  const int padded = cache.padded_value_size();
  for (int head = 0; head < cache.key_heads; ++head) {
    const Head<T> at(cache, block, head);
    write(keys + head * cache.key_size, cache.key_size, kBlockSlots, const_cast<T*>(at.keys) + slot,
          const_cast<float*>(at.key_scales), slot);
    T* row = const_cast<T*>(at.values) + std::size_t(slot) * padded;
    write(values + head * cache.value_size, cache.value_size, 1, row,
          const_cast<float*>(at.value_scales), slot);
    std::fill(row + cache.value_size, row + padded, T{0});
  }
}

void append(const LayerCache& cache, unsigned char* block, int slot, const float* keys,
            const float* values) {
  switch (cache.kind) {
    case CacheKind::float32:
      return append_as<float>(cache, block, slot, keys, values);
    case CacheKind::bfloat16:
      return append_as<std::uint16_t>(cache, block, slot, keys, values);
    case CacheKind::u8:
      return append_as<std::uint8_t>(cache, block, slot, keys, values);
  }
}

// Attention

// Products of R queries (R, size) with the keys of B blocks: (R, kPieceSlots).
//
// Each sum runs over the channels in order, so that it is the same whatever R and B are.
template <typename T, int R, int B>
void multiply_keys(const T* const* keys, const float* queries, int size, float* scores) {
  Floats sums[R][B * kVectorsOfBlock] = {};
  for (int i = 0; i < size; ++i) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsOfBlock; ++v) {
        const Floats key = load(keys[b] + std::size_t(i) * kBlockSlots + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
          sums[r][b * kVectorsOfBlock + v] += key * queries[r * size + i];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < B * kVectorsOfBlock; ++v) {
      store(scores + r * kPieceSlots + v * kLanes, sums[r][v]);
    }
  }
}

template <typename T, int R, int B>
void multiply_piece(const T* const* keys, int blocks, const float* queries, int size,
                    float* scores) {
  int block = 0;
  for (; block + B <= blocks; block += B) {
    multiply_keys<T, R, B>(keys + block, queries, size, scores + block * kBlockSlots);
  }
  for (; block < blocks; ++block) {
    multiply_keys<T, R, 1>(keys + block, queries, size, scores + block * kBlockSlots);
  }
}

constexpr int kMostRows = kLanes == 4 ? 3 : 6;  // as many as leave their sums in registers

template <typename T>
void all_scores(const T* const* keys, int blocks, const float* queries, int count, int size,
                float* scores) {
  int done = 0;
  const auto at = [&](auto kernel, int rows) {
    for (; done + rows <= count; done += rows) {
      kernel(keys, blocks, queries + std::size_t(done) * size, size, scores + done * kPieceSlots);
    }
  };
  at(multiply_piece<T, kMostRows, 1>, kMostRows);
  at(multiply_piece < T, 3, kLanes == 4 ? 1 : 2 >, 3);
  at(multiply_piece < T, 2, kLanes == 4 ? 1 : 2 >, 2);
  at(multiply_piece < T, 1, kLanes == 4 ? 2 : 4 >, 1);
}

// Sums of W vectors of values, weighted for R queries, from slot `first` to `last` of a piece.
template <typename T, int R, int W>
void multiply_values(const Head<T>* heads, int padded, int first, int last, const float* shares,
                     float* out) {
  Floats sums[R][W] = {};
  for (int slot = first; slot < last; ++slot) {
    const Head<T>& head = heads[slot / kBlockSlots];
    const T* row = head.values + std::size_t(slot % kBlockSlots) * padded;
    Floats values[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) {
      values[w] = load(row + w * kLanes);
      if constexpr (sizeof(T) == 1) {
        const int place = slot % kBlockSlots;
        values[w] = values[w] * head.value_scales[place] + head.value_scales[kBlockSlots + place];
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float share = shares[r * kPieceSlots + slot];
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w)
        sums[r][w] += values[w] * share;
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w)
      store(out + r * padded + w * kLanes, sums[r][w]);
  }
}

template <typename T, int R, int W>
void multiply_width(const Head<T>* heads, int padded, int first, int last, const float* shares,
                    float* out) {
  Head<T> moved[kPieceSlots / kBlockSlots] = {heads[0], heads[1], heads[2], heads[3]};
  int done = 0;
  const auto advance = [&](int by) {
    for (Head<T>& head : moved)
      head.values += by;
    done += by;
  };
  while (done + W * kLanes <= padded) {
    multiply_values<T, R, W>(moved, padded, first, last, shares, out + done);
    advance(W * kLanes);
  }
  while (done < padded) {
    multiply_values<T, R, 1>(moved, padded, first, last, shares, out + done);
    advance(kLanes);
  }
}

template <typename T>
void all_values(const Head<T>* heads, int padded, int first, int last, const float* shares,
                int count, float* out) {
  int done = 0;
  const auto at = [&](auto kernel, int rows) {
    for (; done + rows <= count; done += rows) {
      kernel(heads, padded, first, last, shares + done * kPieceSlots,
             out + std::size_t(done) * padded);
    }
  };
  at(multiply_width<T, kMostRows, 2>, kMostRows);
  at(multiply_width < T, 3, kLanes == 4 ? 2 : 4 >, 3);
  at(multiply_width<T, 2, 4>, 2);
  at(multiply_width < T, 1, kLanes == 4 ? 4 : 8 >, 1);
}

// Turns the scores of one query into exponentials in place, 0 where it may not look.
void softmax(float* scores, float own_slope, float soft_cap, std::int64_t piece_start, int first,
             int last, std::int64_t slot, float* largest_score, float* total) {
  Floats places;
  for (int i = 0; i < kLanes; ++i)
    places[i] = static_cast<float>(i);
  Floats most = all(-kInfinity);
  for (int i = 0; i < kPieceSlots; i += kLanes) {
    Floats v = load(scores + i);
    if (soft_cap != 0) v = soft_cap * hyperbolic_tangent(v / soft_cap);
    const Floats place = places + static_cast<float>(i);
    if (own_slope != 0) v += own_slope * (place + static_cast<float>(piece_start - slot));
    const Integers seen = (place >= static_cast<float>(first)) & (place < static_cast<float>(last));
    v = seen ? v : all(-kInfinity);
    most = largest(most, v);
    store(scores + i, v);
  }
  float top = -kInfinity;
  for (int i = 0; i < kLanes; ++i)
    top = std::max(top, most[i]);
  const float shift = top == -kInfinity ? 0 : top;
  Floats sums = {};
  for (int i = 0; i < kPieceSlots; i += kLanes) {
    const Floats v = exponential(load(scores + i) - shift);
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
  all_scores<T>(keys, block_count, scaled, count, size, scores);
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
  all_values<T>(heads, cache.padded_value_size(), first_of_all, last_of_all, scores, count,
                out.values);
}

void attend(const LayerCache& cache, int key_head, unsigned char* const* blocks,
            std::int64_t piece_start, std::int64_t piece_end, const Queries& queries,
            const AttendOptions& options, const PartialSums& out, float* scratch) {
  const auto kernel = cache.kind == CacheKind::float32    ? attend_as<float>
                      : cache.kind == CacheKind::bfloat16 ? attend_as<std::uint16_t>
                                                          : attend_as<std::uint8_t>;
  kernel(cache, key_head, blocks, piece_start, piece_end, queries, options, out, scratch);
}

float one_exponential(float x) {
  return exponential(all(x))[0];
}

void merge(const PartialSums& total, const PartialSums& piece, int queries, int padded) {
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

void finish(const PartialSums& total, const LayerCache& cache, const Queries& queries,
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

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {NPU_SET_NAME, norm,  rotate, combine, append,
                                note_bounds,  bound, attend, merge,   finish};

}  // namespace npu::ops::kernel_programs::NPU_SET
