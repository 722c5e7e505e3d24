// The linear kernels of one instruction set; compiled once for each (CMakeLists.txt).
//
// Outputs are the lanes: nothing is ever added across lanes. Integers are summed for a slab of 64
// inputs, then scaled; slabs are added in their order, whatever the number of rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel_programs/activation_vectors.h"
#include "kernel_programs/linear.h"

namespace npu::ops::kernel_programs::NPU_SET {
namespace {

constexpr int kParts = kBlockOutputs / kLanes;
constexpr std::size_t kAhead = 4096;  // bytes that are fetched before they are needed

// 16 floats, one for each output of a block.
struct Wide {
  Floats part[kParts];
};

Wide load_wide(const float* from) {
  Wide wide;
  for (int i = 0; i < kParts; ++i)
    wide.part[i] = load(from + i * kLanes);
  return wide;
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16, rest = half & 0x7FFFU;
  if (rest >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000U | ((rest & 0x3FF) << 13));
  // Scaled by a power of two, which also makes denormal numbers right.
  const float value = std::bit_cast<float>(rest << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

Wide load_halves(const std::uint16_t* from) {
  Wide wide;
#if defined(__AVX512F__)
  wide.part[0] = std::bit_cast<Floats>(
      _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__)
  for (int i = 0; i < kParts; ++i) {
    wide.part[i] = std::bit_cast<Floats>(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i)));
  }
#else
  for (int i = 0; i < kBlockOutputs; ++i)
    wide.part[i / kLanes][i % kLanes] = half_to_float(from[i]);
#endif
  return wide;
}

Wide load_zeros(const std::uint8_t* from) {
  Wide wide;
  for (int i = 0; i < kParts; ++i)
    wide.part[i] = load(from + i * kLanes);
  return wide;
}

Wide same(float value) {
  Wide wide;
  for (int i = 0; i < kParts; ++i)
    wide.part[i] = all(value);
  return wide;
}

// Integer sums of a block's outputs, and how 4 inputs of a row are added to them. kOffset is what
// the products take from the unsigned weights.

#if defined(__AVX512VNNI__)

constexpr float kOffset8 = 0;

struct Sums {
  __m512i all = _mm512_setzero_si512();
};

Wide to_floats(const Sums& sums) {
  Wide wide;
  wide.part[0] = std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums.all));
  return wide;
}

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
  Sums second[R];  // two chains for each row, as one product waits for the one before
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m512i weights = _mm512_loadu_si512(data + 64 * i);
    _mm_prefetch(reinterpret_cast<const char*>(data + 64 * i + kAhead), _MM_HINT_T0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      std::int32_t quad;
      std::memcpy(&quad, x[r] + 4 * i, 4);
      __m512i& to = R <= 4 && i % 2 == 1 ? second[r].all : sums[r].all;
      to = _mm512_dpbusd_epi32(to, weights, _mm512_set1_epi32(quad));
    }
  }
  if constexpr (R <= 4) {
    for (int r = 0; r < R; ++r)
      sums[r].all = _mm512_add_epi32(sums[r].all, second[r].all);
  }
}

template <int R>
void add_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&low)[R],
               Sums (&high)[R]) {
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i both = _mm512_loadu_si512(data + 64 * i);
    _mm_prefetch(reinterpret_cast<const char*>(data + 64 * i + kAhead), _MM_HINT_T0);
    const __m512i first = _mm512_and_si512(both, nibble);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      std::int32_t quad;
      std::memcpy(&quad, x[r] + 4 * i, 4);
      low[r].all = _mm512_dpbusd_epi32(low[r].all, first, _mm512_set1_epi32(quad));
      std::memcpy(&quad, x[r] + 32 + 4 * i, 4);
      high[r].all = _mm512_dpbusd_epi32(high[r].all, last, _mm512_set1_epi32(quad));
    }
  }
}

#elif defined(__AVX2__)

struct Sums {
  __m256i part[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
};

Wide to_floats(const Sums& sums) {
  Wide wide;
  for (int i = 0; i < 2; ++i)
    wide.part[i] = std::bit_cast<Floats>(_mm256_cvtepi32_ps(sums.part[i]));
  return wide;
}

__m256i quad_of(const std::int8_t* x) {
  std::int32_t quad;
  std::memcpy(&quad, x, 4);
  return _mm256_set1_epi32(quad);
}

__m256i load_bytes(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

#if defined(__AVXVNNI__)

constexpr float kOffset8 = 0;

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m256i weights[2] = {load_bytes(data + 64 * i), load_bytes(data + 64 * i + 32)};
    _mm_prefetch(reinterpret_cast<const char*>(data + 64 * i + kAhead), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i quad = quad_of(x[r] + 4 * i);
      for (int p = 0; p < 2; ++p) {
        sums[r].part[p] = _mm256_dpbusd_avx_epi32(sums[r].part[p], weights[p], quad);
      }
    }
  }
}

template <int R>
void add_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&low)[R],
               Sums (&high)[R]) {
  const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m256i both[2] = {load_bytes(data + 64 * i), load_bytes(data + 64 * i + 32)};
    _mm_prefetch(reinterpret_cast<const char*>(data + 64 * i + kAhead), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i first = quad_of(x[r] + 4 * i), last = quad_of(x[r] + 32 + 4 * i);
      for (int p = 0; p < 2; ++p) {
        low[r].part[p] =
            _mm256_dpbusd_avx_epi32(low[r].part[p], _mm256_and_si256(both[p], nibble), first);
        high[r].part[p] = _mm256_dpbusd_avx_epi32(
            high[r].part[p], _mm256_and_si256(_mm256_srli_epi16(both[p], 4), nibble), last);
      }
    }
  }
}

#else

// The only product of bytes adds two of them in 16 bits, and cuts off what does not fit. Weights
// less 128, their sign given to the other factor, always fit: 128 * 127 * 2 = 32512.
constexpr float kOffset8 = 128;

template <int R>
void add_slab8(const std::uint8_t* data, const std::int8_t* const* x, Sums (&sums)[R]) {
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80)), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(data + 64 * i + kAhead), _MM_HINT_T0);
    for (int p = 0; p < 2; ++p) {
      const __m256i weights = _mm256_xor_si256(load_bytes(data + 64 * i + 32 * p), offset);
      const __m256i sizes = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256i signs = _mm256_sign_epi8(quad_of(x[r] + 4 * i), weights);
        const __m256i pairs = _mm256_maddubs_epi16(sizes, signs);
        sums[r].part[p] = _mm256_add_epi32(sums[r].part[p], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
}

// Eight pairs of products, 8 * 2 * 15 * 127 = 30480, fit into 16 bits.
template <int R>
void add_slab4(const std::uint8_t* data, const std::int8_t* const* x, Sums (&low)[R],
               Sums (&high)[R]) {
  const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  for (int p = 0; p < 2; ++p) {
    __m256i first[R], last[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      first[r] = last[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i both = load_bytes(data + 64 * i + 32 * p);
      if (p == 0) _mm_prefetch(reinterpret_cast<const char*>(data + 64 * i + kAhead), _MM_HINT_T0);
      const __m256i below = _mm256_and_si256(both, nibble);
      const __m256i above = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        first[r] = _mm256_add_epi16(first[r], _mm256_maddubs_epi16(below, quad_of(x[r] + 4 * i)));
        last[r] =
            _mm256_add_epi16(last[r], _mm256_maddubs_epi16(above, quad_of(x[r] + 32 + 4 * i)));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      low[r].part[p] = _mm256_add_epi32(low[r].part[p], _mm256_madd_epi16(first[r], ones));
      high[r].part[p] = _mm256_add_epi32(high[r].part[p], _mm256_madd_epi16(last[r], ones));
    }
  }
}

#endif

#else

constexpr float kOffset8 = 0;

struct Sums {
  std::int32_t all[kBlockOutputs] = {};
};

Wide to_floats(const Sums& sums) {
  Wide wide;
  for (int i = 0; i < kBlockOutputs; ++i) {
    wide.part[i / kLanes][i % kLanes] = static_cast<float>(sums.all[i]);
  }
  return wide;
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

// total += (sums - zeros * sum of x) * scales
void add_scaled(Wide& total, const Sums& sums, const Wide& zeros, float sum_of_x,
                const Wide& scales, float scale_of_x) {
  const Wide values = to_floats(sums);
  for (int i = 0; i < kParts; ++i) {
    const Floats value = values.part[i] - zeros.part[i] * sum_of_x;
    total.part[i] += value * (scales.part[i] * scale_of_x);
  }
}

template <int R>
void multiply8(const PackedLinear& weight, int block, const Activations& x, int row,
               Wide (&total)[R]) {
  const int slabs = weight.slabs();
  const std::uint8_t* data = weight.data + block * weight.block_bytes();
  Wide zeros = same(128 - kOffset8);
  if (weight.zeros != nullptr) {
    float values[kBlockOutputs] = {};
    const int count = std::min(kBlockOutputs, weight.outputs - block * kBlockOutputs);
    for (int i = 0; i < count; ++i)
      values[i] = weight.zeros[block * kBlockOutputs + i] - kOffset8;
    zeros = load_wide(values);
  }
  const Wide ones = same(1);
  for (int slab = 0; slab < slabs; ++slab, data += kSlabInputs * kBlockOutputs) {
    const std::int8_t* of_row[R];
    for (int r = 0; r < R; ++r) {
      of_row[r] = x.integers + (std::size_t(row + r) * slabs + slab) * kSlabInputs;
    }
    Sums sums[R];
    add_slab8<R>(data, of_row, sums);
    for (int r = 0; r < R; ++r) {
      const std::size_t place = std::size_t(row + r) * slabs + slab;
      const float sum_of_x = static_cast<float>(x.sums[2 * place] + x.sums[2 * place + 1]);
      add_scaled(total[r], sums[r], zeros, sum_of_x, ones, x.scales[place]);
    }
  }
  float scales[kBlockOutputs] = {};
  const int count = std::min(kBlockOutputs, weight.outputs - block * kBlockOutputs);
  std::memcpy(scales, static_cast<const float*>(weight.scales) + block * kBlockOutputs,
              count * sizeof(float));
  const Wide factors = load_wide(scales);
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kParts; ++i)
      total[r].part[i] *= factors.part[i];
  }
}

template <int R>
void multiply4(const PackedLinear& weight, int block, const Activations& x, int row,
               Wide (&total)[R]) {
  const int slabs = weight.slabs(), groups = weight.groups();
  const std::uint8_t* data = weight.data + block * weight.block_bytes();
  const std::size_t first_group = std::size_t(block) * groups * kBlockOutputs;
  const auto* scales = static_cast<const std::uint16_t*>(weight.scales) + first_group;
  const std::uint8_t* zeros = weight.zeros == nullptr ? nullptr : weight.zeros + first_group;
  const auto zeros_of = [&](int group) {
    return zeros == nullptr ? same(8) : load_zeros(zeros + std::size_t(group) * kBlockOutputs);
  };
  const auto scales_of = [&](int group) {
    return load_halves(scales + std::size_t(group) * kBlockOutputs);
  };
  for (int slab = 0; slab < slabs; ++slab, data += kSlabInputs * kBlockOutputs / 2) {
    const std::int8_t* of_row[R];
    for (int r = 0; r < R; ++r) {
      of_row[r] = x.integers + (std::size_t(row + r) * slabs + slab) * kSlabInputs;
    }
    Sums low[R], high[R];
    add_slab4<R>(data, of_row, low, high);
    const int group = slab * kSlabInputs / weight.group;
    const Wide scale = scales_of(group), zero = zeros_of(group);
    // With groups of 32 each half has a scale; the last slab may have but one group.
    const bool has_two = weight.group == 32 && group + 1 < groups;
    const Wide next_scale = has_two ? scales_of(group + 1) : scale;
    const Wide next_zero = has_two ? zeros_of(group + 1) : zero;
    for (int r = 0; r < R; ++r) {
      const std::size_t place = std::size_t(row + r) * slabs + slab;
      const auto sum = [&](int half) { return static_cast<float>(x.sums[2 * place + half]); };
      add_scaled(total[r], low[r], zero, sum(0), scale, x.scales[place]);
      add_scaled(total[r], high[r], next_zero, sum(1), next_scale, x.scales[place]);
    }
  }
}

Wide load_vector(const float* from) {
  return load_wide(from);
}

Wide load_vector(const std::uint16_t* from) {  // bfloat16
  Wide wide;
  for (int i = 0; i < kParts; ++i)
    wide.part[i] = load(from + i * kLanes);
  return wide;
}

struct Half {
  std::uint16_t bits;
};

Wide load_vector(const Half* from) {
  return load_halves(&from->bits);
}

template <typename T, int R>
void multiply_floats(const PackedLinear& weight, int block, const Activations& x, int row,
                     Wide (&total)[R]) {
  const T* data = reinterpret_cast<const T*>(weight.data + block * weight.block_bytes());
  const float* of_row[R];
  for (int r = 0; r < R; ++r)
    of_row[r] = x.values + (row + r) * x.stride;
  Wide sums[R];
  for (int r = 0; r < R; ++r)
    sums[r] = same(0);
  for (int input = 0; input < weight.inputs; ++input, data += kBlockOutputs) {
    const Wide weights = load_vector(data);
#if defined(__x86_64__)
    if constexpr (R <= 4) {
      _mm_prefetch(reinterpret_cast<const char*>(data) + kAhead, _MM_HINT_T0);
    }
#endif
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i)
        sums[r].part[i] += weights.part[i] * of_row[r][input];
    }
  }
  for (int r = 0; r < R; ++r)
    total[r] = sums[r];
}

template <int R>
void multiply(const PackedLinear& weight, int block, const Activations& x, int row,
              Wide (&total)[R]) {
  for (int r = 0; r < R; ++r)
    total[r] = same(0);
  switch (weight.kind) {
    case Kind::float32:
      return multiply_floats<float, R>(weight, block, x, row, total);
    case Kind::bfloat16:
      return multiply_floats<std::uint16_t, R>(weight, block, x, row, total);
    case Kind::float16:
      return multiply_floats<Half, R>(weight, block, x, row, total);
    case Kind::int8:
      return multiply8<R>(weight, block, x, row, total);
    case Kind::int4:
      return multiply4<R>(weight, block, x, row, total);
  }
}

void add_bias(Wide& values, const float* bias, int count) {
  for (int i = 0; i < kParts; ++i) {
    const int here = std::clamp(count - i * kLanes, 0, kLanes);
    values.part[i] += load_some(bias + i * kLanes, here);
  }
}

template <int R>
void tile(const PackedLinear& weight, const Activations& x, int row, float* out,
          std::size_t out_stride, int block, const Finish& finish) {
  Wide total[R];
  multiply<R>(weight, block, x, row, total);
  const int count = std::min(kBlockOutputs, weight.outputs - block * kBlockOutputs);
  int column = block * kBlockOutputs;
  Wide up[R];
  if (finish.gated) {
    multiply<R>(weight, block + 1, x, row, up);
    column /= 2;
  }
  for (int r = 0; r < R; ++r) {
    if (finish.bias != nullptr) {
      add_bias(total[r], finish.bias + block * kBlockOutputs, count);
      if (finish.gated) add_bias(up[r], finish.bias + (block + 1) * kBlockOutputs, kBlockOutputs);
    }
    float* to = out + (row + r) * out_stride + column;
    for (int i = 0; i < kParts && i * kLanes < count; ++i) {
      const int here = std::min(kLanes, count - i * kLanes);
      Floats value = activated(total[r].part[i], finish.activation);
      if (finish.gated) value *= up[r].part[i];
      if (finish.soft_cap != 0) {
        value = finish.soft_cap * hyperbolic_tangent(value / finish.soft_cap);
      }
      value *= finish.factor;
      if (finish.residual != nullptr) {
        value += load_some(
            finish.residual + (row + r) * finish.residual_stride + column + i * kLanes, here);
      }
      store_some(to + i * kLanes, value, here);
    }
  }
}

void linear(const PackedLinear& weight, const Activations& x, int rows, float* out,
            std::size_t out_stride, int first_block, int last_block, const Finish& finish) {
  // As many rows at once as leave their sums in registers.
  constexpr bool kIsWide = kLanes == 16;
  for (int block = first_block; block < last_block; block += finish.gated ? 2 : 1) {
    int row = 0;
    const auto at = [&](auto kernel, int at_once) {
      for (; row + at_once <= rows; row += at_once) {
        kernel(weight, x, row, out, out_stride, block, finish);
      }
    };
    if constexpr (kIsWide) at(tile<12>, 12);
    if (kIsWide || !weight.has_integers()) at(tile<6>, 6);
    at(tile<4>, 4);
    at(tile<3>, 3);
    at(tile<2>, 2);
    at(tile<1>, 1);
  }
}

void quantize(const float* x, int inputs, std::int8_t* integers, float* scales,
              std::int32_t* sums) {
  for (int start = 0; start < inputs; start += kSlabInputs) {
    float slab[kSlabInputs] = {};
    std::memcpy(slab, x + start, std::min(kSlabInputs, inputs - start) * sizeof(float));
    Floats most = {}, bad = {};
    for (int i = 0; i < kSlabInputs; i += kLanes) {
      const Floats v = load(slab + i);
      most = largest(most, v < 0.0F ? -v : v);
      bad += v - v;  // NaN for NaN and infinities, else 0
    }
    float top = 0;
    for (int i = 0; i < kLanes; ++i)
      top = std::max(top, most[i]);
    const float wrong = sum(bad);
    const bool is_empty = !(top > 1e-30F) || wrong != wrong;
    const float inverse = is_empty ? 0.0F : 127.0F / top;
    for (int half = 0; half < 2; ++half) {
      Integers total = {};
      for (int i = half * 32; i < half * 32 + 32; i += kLanes) {
        const Floats v = is_empty ? Floats{} : load(slab + i) * inverse;
        const Floats shifted = v + 12582912.0F;  // rounds to the nearest whole number
        const Integers whole = std::bit_cast<Integers>(shifted) - std::int32_t{0x4B400000};
        total += whole;
        using Signed = std::int8_t __attribute__((vector_size(kLanes)));
        const Signed narrow = __builtin_convertvector(whole, Signed);
        std::memcpy(integers + start + i, &narrow, kLanes);
      }
      std::int32_t count = 0;
      for (int i = 0; i < kLanes; ++i)
        count += total[i];
      *sums++ = count;
    }
    *scales++ = (is_empty ? 0.0F : top / 127.0F) + wrong;
  }
}

void embed(const PackedLinear& weight, std::int64_t entry, float factor, float* out) {
  const auto block = static_cast<std::size_t>(entry / kBlockOutputs);
  const auto lane = static_cast<std::size_t>(entry % kBlockOutputs);
  const std::uint8_t* data = weight.data + block * weight.block_bytes();
  for (int input = 0; input < weight.inputs; ++input) {
    const int slab = input / kSlabInputs, place = input % kSlabInputs;
    const std::size_t element = std::size_t(input) * kBlockOutputs + lane;
    float value = 0;
    switch (weight.kind) {
      case Kind::float32:
        std::memcpy(&value, data + 4 * element, 4);
        break;
      case Kind::bfloat16:
      case Kind::float16: {
        std::uint16_t bits;
        std::memcpy(&bits, data + 2 * element, 2);
        value = weight.kind == Kind::float16 ? half_to_float(bits)
                                             : std::bit_cast<float>(std::uint32_t{bits} << 16);
        break;
      }
      case Kind::int8: {
        const int level = data[(std::size_t(slab) * 16 + place / 4) * 64 + lane * 4 + place % 4];
        const int zero = weight.zeros == nullptr ? 128 : weight.zeros[entry];
        value = static_cast<float>(level - zero) * static_cast<const float*>(weight.scales)[entry];
        break;
      }
      case Kind::int4: {
        const int both = data[(std::size_t(slab) * 8 + place % 32 / 4) * 64 + lane * 4 + place % 4];
        const int level = place < 32 ? both & 15 : both >> 4;
        const std::size_t group =
            (block * weight.groups() + input / weight.group) * kBlockOutputs + lane;
        const int zero = weight.zeros == nullptr ? 8 : weight.zeros[group];
        value = static_cast<float>(level - zero) *
                half_to_float(static_cast<const std::uint16_t*>(weight.scales)[group]);
        break;
      }
    }
    out[input] = value * factor;
  }
}

}  // namespace

extern const LinearKernels kLinearKernels;
const LinearKernels kLinearKernels = {NPU_SET_NAME, quantize, linear, embed};

}  // namespace npu::ops::kernel_programs::NPU_SET
