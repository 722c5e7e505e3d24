// The 16 outputs of a block as vectors of the file's instruction set.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel_programs/packed_linear.h"
#include "kernel_programs/vectors.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline constexpr int kParts = kBlockOutputs / kLanes;

// 16 floats, one for each output of a block.
struct Floats16 {
  Floats part[kParts];
};

// The bits of a float16.
struct Float16Bits {
  std::uint16_t bits;
};

inline Floats16 same(float value) {
  Floats16 wide;
  for (int i = 0; i < kParts; ++i)
    wide.part[i] = all(value);
  return wide;
}

// From float32, bfloat16 (uint16_t) or integers (uint8_t).
template <typename T>
Floats16 load_wide(const T* from) {
  Floats16 wide;
  for (int i = 0; i < kParts; ++i)
    wide.part[i] = load(from + i * kLanes);
  return wide;
}

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16, rest = half & 0x7FFFU;
  if (rest >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000U | ((rest & 0x3FF) << 13));
  // Scaled by a power of two, which also handles denormal numbers.
  const float value = std::bit_cast<float>(rest << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

inline Floats16 load_wide(const Float16Bits* from) {
  Floats16 wide;
#if defined(__AVX512F__)
  wide.part[0] = std::bit_cast<Floats>(
      _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__)
  for (int i = 0; i < kParts; ++i) {
    wide.part[i] = std::bit_cast<Floats>(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i)));
  }
#else
  for (int i = 0; i < kParts; ++i) {  // as in half_to_float
    const Integers bits = widened(&from[i * kLanes].bits), rest = bits & 0x7FFF;
    const Integers finite = std::bit_cast<Integers>(std::bit_cast<Floats>(rest << 13) * 0x1p112F);
    const Integers other = ((rest & 0x3FF) << 13) | 0x7F800000;
    const Integers size = rest >= 0x7C00 ? other : finite;
    wide.part[i] = std::bit_cast<Floats>(size | ((bits & 0x8000) << 16));
  }
#endif
  return wide;
}

}  // namespace npu::ops::kernel_programs::NPU_SET
