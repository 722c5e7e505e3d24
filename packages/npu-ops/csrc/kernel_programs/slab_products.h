// Products of a slab of integers with rows, in the instruction set that a file is compiled for.
//
// Weights are unsigned, rows signed. Sums have 32 bits and are exact; they come in as 0.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel_programs/block_vectors.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline constexpr std::size_t kAhead = 4096;  // bytes that are fetched before they are needed
inline constexpr int kFewRows = 4;           // whose products take less time than to read weights

inline void fetch(const void* data) {
  __builtin_prefetch(static_cast<const char*>(data) + kAhead);
}

// Four inputs of a row.
inline std::int32_t quad(const std::int8_t* x) {
  std::int32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// kOffset8 is what the products take from weights of 8 bits.

#if defined(__AVX512VNNI__)

inline constexpr int kOffset8 = 0;

struct Sums {
  __m512i all = _mm512_setzero_si512();
};

inline Wide to_floats(const Sums& sums) {
  Wide wide;
  wide.part[0] = std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums.all));
  return wide;
}

inline Sums operator+(const Sums& left, const Sums& right) {
  return {_mm512_add_epi32(left.all, right.all)};
}

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
  Sums second[R];  // two chains for each row, as one product waits for the one before
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m512i weights = _mm512_loadu_si512(data + 64 * i);
    if constexpr (R <= kFewRows) fetch(data + 64 * i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      __m512i& to = R <= kFewRows && i % 2 == 1 ? second[r].all : sums[r].all;
      to = _mm512_dpbusd_epi32(to, weights, _mm512_set1_epi32(quad(x[r] + 4 * i)));
    }
  }
  if constexpr (R <= kFewRows) {
    for (int r = 0; r < R; ++r)
      sums[r] = sums[r] + second[r];
  }
}

template <int R>
void add_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&low)[R],
               Sums (&high)[R]) {
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i both = _mm512_loadu_si512(data + 64 * i);
    if constexpr (R <= kFewRows) fetch(data + 64 * i);
    const __m512i first = _mm512_and_si512(both, nibble);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const std::int8_t* of_row = x[r] + 4 * i;
      low[r].all = _mm512_dpbusd_epi32(low[r].all, first, _mm512_set1_epi32(quad(of_row)));
      high[r].all = _mm512_dpbusd_epi32(high[r].all, last, _mm512_set1_epi32(quad(of_row + 32)));
    }
  }
}

#elif defined(__AVX2__)

struct Sums {
  __m256i part[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
};

inline Wide to_floats(const Sums& sums) {
  Wide wide;
  for (int i = 0; i < 2; ++i)
    wide.part[i] = std::bit_cast<Floats>(_mm256_cvtepi32_ps(sums.part[i]));
  return wide;
}

inline Sums operator+(const Sums& left, const Sums& right) {
  return {_mm256_add_epi32(left.part[0], right.part[0]),
          _mm256_add_epi32(left.part[1], right.part[1])};
}

// Else GCC 12 loads the inputs of all rows first, and has no registers left for their sums: 6 rows
// of 4 bits then take 1.4 times as long (Zen 3, 2026-11-23).
inline void keep_in_registers(__m256i& low, __m256i& high) {
  asm("" : "+x"(low), "+x"(high));
}

inline __m256i load_bytes(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

#if defined(__AVXVNNI__)

inline constexpr int kOffset8 = 0;

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
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
    sums[r] = {left[r], right[r]};
}

// Sums and the products of nibbles with inputs, and what such sums are in 32 bits.
inline __m256i with_nibbles(__m256i sums, __m256i nibbles, __m256i inputs) {
  return _mm256_dpbusd_avx_epi32(sums, nibbles, inputs);
}

inline __m256i of_nibbles(__m256i sums) {
  return sums;
}

#else

// The only product of bytes adds two of them in 16 bits, and cuts off what does not fit. Weights
// less 128, their sign given to the other factor, always fit: 128 * 127 * 2 = 32512.
inline constexpr int kOffset8 = 128;

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
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
      sums[r].part[p] = totals[r];
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

// The two halves of a block one after the other, so that the sums of six rows stay in registers.
template <int R>
void add_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&low)[R],
               Sums (&high)[R]) {
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
      low[r].part[p] = of_nibbles(first[r]);
      high[r].part[p] = of_nibbles(last[r]);
    }
  }
}

#else

inline constexpr int kOffset8 = 0;

struct Sums {
  std::int32_t all[kBlockOutputs] = {};
};

inline Wide to_floats(const Sums& sums) {
  Wide wide;
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

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
  for (int i = 0; i < 16; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int output = 0; output < kBlockOutputs; ++output) {
        for (int j = 0; j < 4; ++j) {
          sums[r].all[output] += data[64 * i + 4 * output + j] * x[r][4 * i + j];
        }
      }
    }
  }
}

template <int R>
void add_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&low)[R],
               Sums (&high)[R]) {
  for (int i = 0; i < 8; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int output = 0; output < kBlockOutputs; ++output) {
        for (int j = 0; j < 4; ++j) {
          const std::uint8_t both = data[64 * i + 4 * output + j];
          low[r].all[output] += (both & 15) * x[r][4 * i + j];
          high[r].all[output] += (both >> 4) * x[r][32 + 4 * i + j];
        }
      }
    }
  }
}

#endif

// Both halves in one sum. Where registers are few, or a sum would wait for the one before, there
// are two first.
template <int R>
void add_whole_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
#if defined(__AVX512VNNI__)
  if constexpr (R > kFewRows) return add_slab4<R>(data, x, sums, sums);
#endif
  Sums high[R];
  add_slab4<R>(data, x, sums, high);
  for (int r = 0; r < R; ++r)
    sums[r] = sums[r] + high[r];
}

}  // namespace npu::ops::kernel_programs::NPU_SET
