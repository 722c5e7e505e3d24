// Products of queries with a head's keys, and weighted sums of its values, in the file's
// instruction set.
//
// Each sum runs over channels or slots in order, so that it does not depend on the size of a tile.
// All loops over sums are unrolled, including the remainders: otherwise GCC 12 keeps the sums in
// memory, which takes 2.5 times as long. If the processor multiplies pairs of bfloat16, it does so
// for a bfloat16 cache: queries and weights are rounded to bfloat16, products are summed in
// float32.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel_programs/cached_head.h"
#include "kernel_programs/vectors.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline constexpr int kVectorsOfBlock = kBlockSlots / kLanes;

// Numbers of queries, blocks of keys and vectors of values per tile: the largest whose sums fit in
// registers.
struct TileSize {
  int queries, blocks, widths;
};

#if defined(__AVX512F__)
inline constexpr std::array kTileSizes{TileSize{12, 2, 2}, TileSize{6, 4, 4}, TileSize{3, 4, 4},
                                       TileSize{2, 4, 4}, TileSize{1, 4, 8}};
#elif defined(__AVX2__)
inline constexpr std::array kTileSizes{TileSize{6, 1, 2}, TileSize{3, 2, 4}, TileSize{2, 2, 4},
                                       TileSize{1, 4, 8}};
#else
inline constexpr std::array kTileSizes{TileSize{3, 1, 2}, TileSize{2, 1, 4}, TileSize{1, 2, 4}};
#endif

// Calls body with a tile's size, as a constant, and its first query, for all queries.
template <typename Body>
void for_tiles(int queries, const Body& body) {
  int done = 0;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto one_size = [&]<TileSize S>() {
      for (; done + S.queries <= queries; done += S.queries)
        body.template operator()<S>(done);
    };
    (one_size.template operator()<kTileSizes[I]>(), ...);
  }(std::make_index_sequence<kTileSizes.size()>());
}

#if defined(__AVX512BF16__)

// Two adjacent numbers of a row as bfloat16, the first in the lower half.
using Pair = std::uint32_t;

inline __m512bh as_pairs(__m512i bits) {
  return std::bit_cast<__m512bh>(bits);
}

// Rounds a row to pairs, possibly in place. An odd last number is paired with 0.
inline void round_to_pairs(const float* from, int count, Pair* to) {
  for (int i = 0; i < count; i += kLanes) {
    const int here = std::min(kLanes, count - i);
    const __m512 floats = std::bit_cast<__m512>(load_some(from + i, here));
    const auto halves = std::bit_cast<__m256i>(_mm512_cvtneps_pbh(floats));
    const auto mask = static_cast<__mmask8>((1U << ((here + 1) / 2)) - 1);
    _mm256_mask_storeu_epi32(to + i / 2, mask, halves);
  }
}

// Interleaves two rows of 16.
inline __m512i by_turns(int second_row) {
  alignas(64) std::uint16_t places[32];
  for (int i = 0; i < 16; ++i) {
    places[2 * i] = static_cast<std::uint16_t>(i);
    places[2 * i + 1] = static_cast<std::uint16_t>(second_row + i);
  }
  return _mm512_load_si512(places);
}

// The same pair in all places. In a register where several products need it: as an operand in
// memory it would be loaded for each.
template <int kProducts>
__m512bh same_pair(Pair pair) {
  __m512i pairs = _mm512_set1_epi32(static_cast<int>(pair));
  if constexpr (kProducts > 1) asm("" : "+v"(pairs));
  return as_pairs(pairs);
}

inline void add_products(Floats& sum, __m512bh left, __m512bh right) {
  sum = std::bit_cast<Floats>(_mm512_dpbf16_ps(std::bit_cast<__m512>(sum), left, right));
}

// Products of R queries (R, size) in pairs with the keys of B blocks: (R, kPieceSlots).
template <int R, int B>
void multiply_keys(const std::uint16_t* const* keys, const Pair* queries, int size, float* scores) {
  const __m512i turns = by_turns(16);
  Floats sums[R][B] = {};
  for (int i = 0; i < size; i += 2) {
    const __mmask32 present = i + 1 < size ? 0xFFFFFFFF : 0xFFFF;
    __m512bh both[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      const std::uint16_t* row = keys[b] + std::size_t(i) * kBlockSlots;
      both[b] = as_pairs(_mm512_permutexvar_epi16(turns, _mm512_maskz_loadu_epi16(present, row)));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512bh query = same_pair<B>(queries[r * size + i / 2]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b)
        add_products(sums[r][b], both[b], query);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b)
      store(scores + r * kPieceSlots + b * kBlockSlots, sums[r][b]);
  }
}

// Sums of W vectors of values, weighted for R queries by pairs, from slot `first` to `last` of a
// piece. Other slots count as 0, whatever their contents.
template <int R, int W>
void multiply_values(const Head<std::uint16_t>* heads, int padded, int first, int last,
                     const Pair* shares, float* out) {
  const __m512i turns = by_turns(32);
  Floats sums[R][W] = {};
  for (int slot = first & ~1; slot < last; slot += 2) {
    const std::uint16_t* row =
        heads[slot / kBlockSlots].values + std::size_t(slot % kBlockSlots) * padded;
    const __mmask16 has_first = slot >= first ? 0xFFFF : 0,
                    has_second = slot + 1 < last ? 0xFFFF : 0;
    __m512bh both[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) {
      const __m256i one = _mm256_maskz_loadu_epi16(has_first, row + w * kLanes);
      const __m256i other = _mm256_maskz_loadu_epi16(has_second, row + padded + w * kLanes);
      both[w] = as_pairs(_mm512_permutex2var_epi16(_mm512_castsi256_si512(one), turns,
                                                   _mm512_castsi256_si512(other)));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512bh share = same_pair<W>(shares[r * kPieceSlots + slot / 2]);
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w)
        add_products(sums[r][w], both[w], share);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w)
      store(out + r * padded + w * kLanes, sums[r][w]);
  }
}

#endif

// Rows of queries or weights in the format for a cache of T: floats, or pairs in the first half of
// each row.
template <typename T>
auto factors_in(float* rows) {
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<T, std::uint16_t>)
    return reinterpret_cast<Pair*>(rows);
  else
    return rows;
#else
  return rows;
#endif
}

// Creates them from floats (count, width).
template <typename T>
auto as_factors(float* rows, int count, int width) {
  const auto factors = factors_in<T>(rows);
  if constexpr (!std::is_same_v<decltype(factors), float* const>) {
    for (int row = 0; row < count; ++row) {
      const std::size_t start = std::size_t(row) * width;
      round_to_pairs(rows + start, width, factors + start);
    }
  }
  return factors;
}

// Products of R queries (R, size) with the keys of B blocks: (R, kPieceSlots).
template <int R, int B, typename T>
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
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < B * kVectorsOfBlock; ++v) {
      store(scores + r * kPieceSlots + v * kLanes, sums[r][v]);
    }
  }
}

// Sums of W vectors of values, weighted for R queries, from slot `first` to `last` of a piece.
template <int R, int W, typename T>
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
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w)
      store(out + r * padded + w * kLanes, sums[r][w]);
  }
}

// Products of queries (count, size), floats or pairs, with the keys of blocks.
template <typename T, typename Factor>
void all_scores(const T* const* keys, int blocks, const Factor* queries, int count, int size,
                float* scores) {
  for_tiles(count, [&]<TileSize S>(int done) {
    const Factor* of_tile = queries + std::size_t(done) * size;
    float* to = scores + done * kPieceSlots;
    int block = 0;
    for (; block + S.blocks <= blocks; block += S.blocks) {
      multiply_keys<S.queries, S.blocks>(keys + block, of_tile, size, to + block * kBlockSlots);
    }
    for (; block < blocks; ++block) {
      multiply_keys<S.queries, 1>(keys + block, of_tile, size, to + block * kBlockSlots);
    }
  });
}

// Sums of values weighted for queries: (count, padded). The weights, floats or pairs, are in rows
// of kPieceSlots elements.
template <typename T, typename Factor>
void all_values(const Head<T>* heads, int padded, int first, int last, const Factor* shares,
                int count, float* out) {
  for_tiles(count, [&]<TileSize S>(int done) {
    Head<T> moved[kPieceSlots / kBlockSlots] = {heads[0], heads[1], heads[2], heads[3]};
    const Factor* of_tile = shares + done * kPieceSlots;
    float* to = out + std::size_t(done) * padded;
    int column = 0;
    const auto advance = [&](int by) {
      for (Head<T>& head : moved)
        head.values += by;
      column += by;
    };
    while (column + S.widths * kLanes <= padded) {
      multiply_values<S.queries, S.widths>(moved, padded, first, last, of_tile, to + column);
      advance(S.widths * kLanes);
    }
    while (column < padded) {
      multiply_values<S.queries, 1>(moved, padded, first, last, of_tile, to + column);
      advance(kLanes);
    }
  });
}

}  // namespace npu::ops::kernel_programs::NPU_SET
