// Vectors of the file's instruction set, by the compiler's vector types.
//
// The namespace is named after the instruction set, so that functions of different sets are not
// merged by the linker.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__)
#define NPU_SET avx512_bf16
#elif defined(__AVX512F__)
#define NPU_SET avx512
#elif defined(__AVXVNNI__)
#define NPU_SET avx_vnni
#elif defined(__AVX2__)
#define NPU_SET avx2
#else
#define NPU_SET plain
#endif
#define NPU_TEXT(word) #word
#define NPU_TEXT_OF(macro) NPU_TEXT(macro)
#define NPU_SET_NAME NPU_TEXT_OF(NPU_SET)

namespace npu::ops::kernel_programs::NPU_SET {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

using Floats = float __attribute__((vector_size(kLanes * 4)));
using Integers = std::int32_t __attribute__((vector_size(kLanes * 4)));
using Halves = std::uint16_t __attribute__((vector_size(kLanes * 2)));
using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

// All lanes the same.
inline Floats all(float value) {
  return value - Floats{};
}

inline Floats load(const float* from) {
  Floats vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// By intrinsics if GCC 12 generates several instructions for __builtin_convertvector; with a full
// mask if GCC warns of an uninitialized value for the unmasked intrinsic.
inline Integers widened(const std::uint16_t* from) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return std::bit_cast<Integers>(_mm512_maskz_cvtepu16_epi32(0xFFFF, halves));
#elif defined(__AVX2__)
  return std::bit_cast<Integers>(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, Integers);
#endif
}

inline Integers widened(const std::uint8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return std::bit_cast<Integers>(_mm512_maskz_cvtepu8_epi32(0xFFFF, bytes));
#elif defined(__AVX2__)
  return std::bit_cast<Integers>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, Integers);
#endif
}

// bfloat16 is the upper half of a float32.
inline Floats load(const std::uint16_t* from) {
  return std::bit_cast<Floats>(widened(from) << 16);
}

inline Floats load(const std::uint8_t* from) {
  return __builtin_convertvector(widened(from), Floats);
}

inline void store(float* to, Floats vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// The first `count` elements; other lanes are 0.
inline Floats load_some(const float* from, int count) {
  if (count == kLanes) return load(from);
  Floats vector = {};
  std::memcpy(&vector, from, count * sizeof(float));
  return vector;
}

inline void store_some(float* to, Floats vector, int count) {
  if (count == kLanes) return store(to, vector);
  std::memcpy(to, &vector, count * sizeof(float));
}

// NaN in `right` wins, one in `left` does not.
inline Floats largest(Floats left, Floats right) {
  return left > right ? left : right;
}

template <typename Element, int kCount>
struct Row {
  typedef Element Vector __attribute__((vector_size(kCount * sizeof(Element))));
};

// Horizontal reduction by halves, for short dependency chains.
template <typename Element, int kCount, typename Combine, int... I>
Element across(typename Row<Element, kCount>::Vector vector, const Combine& combine,
               std::integer_sequence<int, I...>) {
  const auto half = combine(__builtin_shufflevector(vector, vector, I...),
                            __builtin_shufflevector(vector, vector, (I + kCount / 2)...));
  if constexpr (kCount > 2) {
    return across<Element, kCount / 2>(half, combine,
                                       std::make_integer_sequence<int, kCount / 4>());
  } else {
    return half[0];
  }
}

template <typename Element, typename Combine>
Element across(typename Row<Element, kLanes>::Vector vector, const Combine& combine) {
  return across<Element, kLanes>(vector, combine, std::make_integer_sequence<int, kLanes / 2>());
}

inline float sum(Floats vector) {
  return across<float>(vector, [](auto left, auto right) { return left + right; });
}

inline std::int32_t sum(Integers vector) {
  return across<std::int32_t>(vector, [](auto left, auto right) { return left + right; });
}

inline float largest_of(Floats vector) {
  return across<float>(vector, [](auto left, auto right) { return left > right ? left : right; });
}

// e^x for x from -87.3 to 88.7, or NaN.
inline Floats unbounded_exponential(Floats x) {
  const Floats scaled = x * 1.44269504088896341F;
  const Floats shifted = scaled + 12582912.0F;  // rounds to the nearest whole number
  const Floats whole = shifted - 12582912.0F;
  const Floats rest = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
  Floats result = all(1.9875691500e-4F);
  result = result * rest + 1.3981999507e-3F;
  result = result * rest + 8.3334519073e-3F;
  result = result * rest + 4.1665795894e-2F;
  result = result * rest + 1.6666665459e-1F;
  result = result * rest + 5.0000001201e-1F;
  result = result * rest * rest + rest + 1.0F;
  const Integers power = (std::bit_cast<Integers>(shifted) - std::int32_t{0x4B400000} + 127) << 23;
  return result * std::bit_cast<Floats>(power);
}

// e^x to 1e-7 of it; below -87.3 it is 0, above 88.7 infinite; NaN stays.
inline Floats exponential(Floats x) {
  const Floats bounded = x < -87.3F ? all(-87.3F) : (x > 88.7F ? all(88.7F) : x);
  Floats result = unbounded_exponential(bounded);
  result = x < -87.3F ? all(0) : result;
  result = x > 88.7F ? all(std::numeric_limits<float>::infinity()) : result;
  return x == x ? result : x;
}

// e^x for x that is no larger than 0, to 1e-6 of it; NaN stays.
inline Floats exponential_to_one(Floats x) {
#if defined(__AVX512F__)
  // As a power of two: 2^whole * 2^rest, the latter by its series. The comparison drops NaN.
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-1000.0F), std::bit_cast<__m512>(x));
  const __m512 factor = _mm512_set1_ps(1.44269504088896341F);
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(bounded, factor), 8);
  const Floats rest = std::bit_cast<Floats>(_mm512_fmsub_ps(bounded, factor, whole));
  Floats result = all(1.5403530e-4F);
  result = result * rest + 1.3333558e-3F;
  result = result * rest + 9.6181291e-3F;
  result = result * rest + 5.5504109e-2F;
  result = result * rest + 2.4022651e-1F;
  result = result * rest + 6.9314718e-1F;
  result = result * rest + 1.0F;
  return std::bit_cast<Floats>(_mm512_scalef_ps(std::bit_cast<__m512>(result), whole));
#else
  const Floats bounded = x < -87.3F ? all(-87.3F) : x;
  const Floats result = unbounded_exponential(bounded);
  return x < -87.3F ? all(0) : result;
#endif
}

// To 1e-7 of it; polynomials of N. Juffa's erff.
inline Floats error_function(Floats x) {
  const Floats size = x < 0.0F ? -x : x, square = x * x;
  Floats small = all(-5.96761703e-4F);
  small = small * square + 4.99119423e-3F;
  small = small * square - 2.67681349e-2F;
  small = small * square + 1.12819925e-1F;
  small = small * square - 3.76125336e-1F;
  small = small * square + 1.28379166e-1F;
  Floats power = all(-1.72853470e-5F);
  power = power * size + 3.83197126e-4F;
  power = power * size - 3.88396438e-3F;
  power = power * size + 2.42546219e-2F;
  power = power * size - 1.06777877e-1F;
  power = power * size - 6.34846687e-1F;
  power = power * size - 1.28717512e-1F;
  // Beyond 4 it is 1 in float32, and powers of larger numbers would overflow.
  const Floats bounded = size > 4.0F ? all(-100) : power * size - size;
  const Floats large = 1.0F - exponential(bounded);
  const Floats far = x < 0.0F ? -large : large;
  const Floats result = size > 0.927734375F ? far : small * x + x;
  return x == x ? result : x;
}

// 1 - 2 / (e^2x + 1), but the series for small x, where that formula loses digits.
inline Floats hyperbolic_tangent(Floats x) {
  const Floats square = x * x;
  const Floats small =
      x * (1.0F + square * (-0.333333343F + square * (0.133333340F + square * -0.0539682540F)));
  const Floats large = 1.0F - 2.0F / (exponential(2.0F * x) + 1.0F);
  return square < 0.01F ? small : large;
}

}  // namespace npu::ops::kernel_programs::NPU_SET
