// Products of a slab of integers with rows, in the file's instruction set.
//
// Weights are unsigned, rows signed. Sums have 32 bits and are exact; they are 0 initially.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel_programs/block_vectors.h"
#include "kernel_programs/linear.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline constexpr std::size_t kAhead = 4096;  // bytes to fetch ahead
inline constexpr int kFewRows = 4;           // their products take less time than weights to load

// Always inlined: GCC 12 drops calls of a function that does nothing else.
[[gnu::always_inline]] inline void fetch(const void* data) {
  __builtin_prefetch(static_cast<const char*>(data) + kAhead);
}

// Four inputs of a row.
inline std::int32_t quad(const std::int8_t* x) {
  std::int32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// Rows of integers from `row` on, slab by slab.
template <int R>
struct Slabs {
  const Activations& x;
  int row, slabs;

  std::size_t place(int r, int slab) const { return std::size_t(row + r) * slabs + slab; }
  float scale(int r, int slab) const { return x.scales[place(r, slab)]; }
  const float* sums(int r, int slab) const { return x.sums + kSumsOfSlab * place(r, slab); }
  float sum(int r, int slab) const { return sums(r, slab)[0]; }
  // The integers of a slab. With few rows, those of the next are prefetched: the hardware
  // does not foresee such short rows. With many rows, products dominate, and a prefetch
  // would replace a load.
  std::array<const std::int8_t*, R> rows(int slab) const {
    std::array<const std::int8_t*, R> of_row;
    for (int r = 0; r < R; ++r) {
      of_row[r] = x.integers + place(r, slab) * kSlabInputs;
      if constexpr (R <= kFewRows) __builtin_prefetch(of_row[r] + kSlabInputs);
    }
    return of_row;
  }
};

// kOffset8 is the offset that products subtract from 8-bit weights. A product is of up to
// kMostBlocks blocks, `block_bytes` apart; sums are (blocks, rows).

#if defined(__AVX512VNNI__)

inline constexpr int kOffset8 = 0;

struct Sums {
  __m512i all = _mm512_setzero_si512();
};

inline Floats16 to_floats(const Sums& sums) {
  Floats16 wide;
  wide.part[0] = std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums.all));
  return wide;
}

inline Sums operator+(const Sums& left, const Sums& right) {
  return {_mm512_add_epi32(left.all, right.all)};
}

// Processed together, two blocks share the load of a row's inputs: 12 sums of 2 blocks and 6 rows
// take 0.85 of the time of 12 rows of one block, and 0.55 if the weights come from memory (Zen 5,
// 2026-11-25).
inline constexpr int kMostBlocks = 2;

// The same four inputs for each output. In a register if two blocks need them: a memory operand
// would be loaded for each.
template <int B>
__m512i inputs_of(const std::int8_t* x) {
  __m512i inputs = _mm512_set1_epi32(quad(x));
  if constexpr (B > 1) asm("" : "+v"(inputs));
  return inputs;
}

template <int B, int R>
[[gnu::always_inline]] inline void add_slab8(const std::uint8_t* data, std::size_t block_bytes,
                                             const std::int8_t* const* x, Sums (&sums)[B][R]) {
  constexpr bool are_few = B * R <= kFewRows;
  Sums second[B][R];  // two chains per sum, because a product depends on the previous one
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    __m512i weights[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; ++b) {
      weights[b] = _mm512_loadu_si512(data + b * block_bytes + 64 * i);
      if constexpr (are_few) fetch(data + b * block_bytes + 64 * i);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i inputs = inputs_of<B>(x[r] + 4 * i);
#pragma GCC unroll 2
      for (int b = 0; b < B; ++b) {
        __m512i& to = are_few && i % 2 == 1 ? second[b][r].all : sums[b][r].all;
        to = _mm512_dpbusd_epi32(to, weights[b], inputs);
      }
    }
  }
  if constexpr (are_few) {
    for (int b = 0; b < B; ++b) {
      for (int r = 0; r < R; ++r)
        sums[b][r] = sums[b][r] + second[b][r];
    }
  }
}

// Adds the products of low nibbles to `low`, and of high nibbles to `high`, which may be the same
// sums; null to skip.
template <int B, int R>
[[gnu::always_inline]] inline void add_slab4(const std::uint8_t* data, std::size_t block_bytes,
                                             const std::int8_t* const* x, Sums (*low)[R],
                                             Sums (*high)[R]) {
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m512i first[B], last[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; ++b) {
      const std::uint8_t* from = data + b * block_bytes + 64 * i;
      if constexpr (B * R <= kFewRows) fetch(from);
      const __m512i both = _mm512_loadu_si512(from);
      first[b] = _mm512_and_si512(both, nibble);
      last[b] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if (low != nullptr) {
        const __m512i inputs = inputs_of<B>(x[r] + 4 * i);
#pragma GCC unroll 2
        for (int b = 0; b < B; ++b)
          low[b][r].all = _mm512_dpbusd_epi32(low[b][r].all, first[b], inputs);
      }
      if (high != nullptr) {
        const __m512i inputs = inputs_of<B>(x[r] + 32 + 4 * i);
#pragma GCC unroll 2
        for (int b = 0; b < B; ++b)
          high[b][r].all = _mm512_dpbusd_epi32(high[b][r].all, last[b], inputs);
      }
    }
  }
}

#elif defined(__AVX2__)

inline constexpr int kMostBlocks = 1;

struct Sums {
  __m256i part[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
};

inline Floats16 to_floats(const Sums& sums) {
  Floats16 wide;
  for (int i = 0; i < 2; ++i)
    wide.part[i] = std::bit_cast<Floats>(_mm256_cvtepi32_ps(sums.part[i]));
  return wide;
}

inline Sums operator+(const Sums& left, const Sums& right) {
  return {_mm256_add_epi32(left.part[0], right.part[0]),
          _mm256_add_epi32(left.part[1], right.part[1])};
}

// Otherwise GCC 12 loads the inputs of all rows first, and has no registers left for their sums: 6
// rows of 4 bits then take 1.4 times as long (Zen 3, 2026-11-23).
inline void keep_in_registers(__m256i& low, __m256i& high) {
  asm("" : "+x"(low), "+x"(high));
}

inline __m256i load_bytes(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

#if defined(__AVXVNNI__)

inline constexpr int kOffset8 = 0;

template <int B, int R>
void add_slab8(const std::uint8_t* data, std::size_t, const std::int8_t* const* x,
               Sums (&sums)[B][R]) {
  static_assert(B == 1);
  for (int i = 0; i < 16; ++i)
    fetch(data + 64 * i);
  __m256i left[R], right[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    left[r] = right[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int i = 0; i < 16; ++i) {
    const __m256i first = load_bytes(data + 64 * i), last = load_bytes(data + 64 * i + 32);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i inputs = _mm256_set1_epi32(quad(x[r] + 4 * i));
      left[r] = _mm256_dpbusd_avx_epi32(left[r], first, inputs);
      right[r] = _mm256_dpbusd_avx_epi32(right[r], last, inputs);
      keep_in_registers(left[r], right[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    sums[0][r] = {left[r], right[r]};
}

// Products of nibbles with inputs, their sums, and the conversion to 32 bits.
inline __m256i with_nibbles(__m256i sums, __m256i nibbles, __m256i inputs) {
  return _mm256_dpbusd_avx_epi32(sums, nibbles, inputs);
}

inline __m256i of_nibbles(__m256i sums) {
  return sums;
}

#else

// The only byte product adds two products in 16 bits with saturation. Weights minus 128, with their
// sign moved to the other factor, always fit: 128 * 127 * 2 = 32512.
inline constexpr int kOffset8 = 128;

template <int B, int R>
void add_slab8(const std::uint8_t* data, std::size_t, const std::int8_t* const* x,
               Sums (&sums)[B][R]) {
  static_assert(B == 1);
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80)), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 16; ++i)
    fetch(data + 64 * i);
  for (int p = 0; p < 2; ++p) {
    __m256i totals[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      totals[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int i = 0; i < 16; ++i) {
      const __m256i weights = _mm256_xor_si256(load_bytes(data + 64 * i + 32 * p), offset);
      const __m256i sizes = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256i inputs = _mm256_set1_epi32(quad(x[r] + 4 * i));
        const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(inputs, weights));
        totals[r] = _mm256_add_epi32(totals[r], _mm256_madd_epi16(pairs, ones));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      sums[0][r].part[p] = totals[r];
  }
}

// Eight pairs of products with nibbles, 8 * 2 * 15 * 127 = 30480, fit into 16 bits.
inline __m256i with_nibbles(__m256i sums, __m256i nibbles, __m256i inputs) {
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(nibbles, inputs));
}

inline __m256i of_nibbles(__m256i sums) {
  return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

#endif

// The two halves of a block in sequence, so that the sums of six rows stay in registers.
template <int B, int R>
void add_slab4(const std::uint8_t* data, std::size_t, const std::int8_t* const* x, Sums (*low)[R],
               Sums (*high)[R]) {
  static_assert(B == 1);
  const __m256i nibble = _mm256_set1_epi8(15);
  for (int i = 0; i < 8; ++i)
    fetch(data + 64 * i);
  for (int p = 0; p < 2; ++p) {
    __m256i first[R], last[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      first[r] = last[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int i = 0; i < 8; ++i) {
      const __m256i both = load_bytes(data + 64 * i + 32 * p);
      const __m256i below = _mm256_and_si256(both, nibble);
      const __m256i above = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256i inputs = _mm256_set1_epi32(quad(x[r] + 4 * i));
        const __m256i further = _mm256_set1_epi32(quad(x[r] + 32 + 4 * i));
        first[r] = with_nibbles(first[r], below, inputs);
        last[r] = with_nibbles(last[r], above, further);
        keep_in_registers(first[r], last[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      low[0][r].part[p] = of_nibbles(first[r]);
      high[0][r].part[p] = of_nibbles(last[r]);
    }
  }
}

#else

inline constexpr int kMostBlocks = 1;
inline constexpr int kOffset8 = 0;

struct Sums {
  std::int32_t all[kBlockOutputs] = {};
};

inline Floats16 to_floats(const Sums& sums) {
  Floats16 wide;
  for (int i = 0; i < kBlockOutputs; ++i) {
    wide.part[i / kLanes][i % kLanes] = static_cast<float>(sums.all[i]);
  }
  return wide;
}

inline Sums operator+(const Sums& left, const Sums& right) {
  Sums total;
  for (int i = 0; i < kBlockOutputs; ++i)
    total.all[i] = left.all[i] + right.all[i];
  return total;
}

template <int B, int R>
void add_slab8(const std::uint8_t* data, std::size_t, const std::int8_t* const* x,
               Sums (&sums)[B][R]) {
  static_assert(B == 1);
  for (int i = 0; i < 16; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int output = 0; output < kBlockOutputs; ++output) {
        for (int j = 0; j < 4; ++j) {
          sums[0][r].all[output] += data[64 * i + 4 * output + j] * x[r][4 * i + j];
        }
      }
    }
  }
}

template <int B, int R>
void add_slab4(const std::uint8_t* data, std::size_t, const std::int8_t* const* x, Sums (*low)[R],
               Sums (*high)[R]) {
  static_assert(B == 1);
  for (int i = 0; i < 8; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int output = 0; output < kBlockOutputs; ++output) {
        for (int j = 0; j < 4; ++j) {
          const std::uint8_t both = data[64 * i + 4 * output + j];
          low[0][r].all[output] += (both & 15) * x[r][4 * i + j];
          high[0][r].all[output] += (both >> 4) * x[r][32 + 4 * i + j];
        }
      }
    }
  }
}

#endif

// Whether the totals of this many rows and blocks leave registers for one sum each.
template <int B, int R>
inline constexpr bool kFillsRegisters = kMostBlocks > 1 && (B * R) > kFewRows;

// Both halves in one sum. With few registers, or if a sum would depend on the previous one, two
// sums come first.
template <int B, int R>
[[gnu::always_inline]] inline void add_whole_slab4(const std::uint8_t* data,
                                                   std::size_t block_bytes,
                                                   const std::int8_t* const* x,
                                                   Sums (&sums)[B][R]) {
  if constexpr (kFillsRegisters<B, R>) {
    add_slab4<B, R>(data, block_bytes, x, sums, sums);
  } else {
    Sums high[B][R];
    add_slab4<B, R>(data, block_bytes, x, sums, high);
    for (int b = 0; b < B; ++b) {
      for (int r = 0; r < R; ++r)
        sums[b][r] = sums[b][r] + high[b][r];
    }
  }
}

}  // namespace npu::ops::kernel_programs::NPU_SET
