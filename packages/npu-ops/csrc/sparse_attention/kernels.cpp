// The sparse attention kernels of one instruction set; compiled once for each (CMakeLists.txt).
#include "sparse_attention/kernels.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernel_programs/vectors.h"

namespace npu::ops::sparse_attention::NPU_SET {

using namespace npu::ops::kernel_programs::NPU_SET;

namespace {

constexpr int kVectors = kBlock / kLanes;       // of a block's sixteen positions or channels
constexpr int kHeadRows = kLanes == 4 ? 3 : 6;  // sums fit in registers
// Products of pairs have separate registers before they are added.
constexpr int kPairRows = kLanes == 8 ? 4 : kHeadRows;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint16_t to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// A float16; a plain std::uint16_t is the upper half of a float32, a bfloat16.
struct Half {
  std::uint16_t bits;
};

// Exact, and without float32's subnormal numbers, which may be flushed to zero.
float to_float(Half half) {
  const std::uint32_t sign = std::uint32_t(half.bits & 0x8000) << 16;
  const std::uint32_t rest = std::uint32_t(half.bits & 0x7FFF) << 13;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>((half.bits & 0x3FF) * 0x1p-24F);
  const std::uint32_t finite = (half.bits & 0x7C00) != 0 ? rest + (112U << 23) : subnormal;
  const bool is_finite = (half.bits & 0x7C00) != 0x7C00;
  return std::bit_cast<float>(sign | (is_finite ? finite : rest | 0x7F800000U));
}

float element_at(const Half* from, int i) {
  return to_float(from[i]);
}

Floats elements_at(const Half* from) {
  Floats found;
  for (int lane = 0; lane < kLanes; ++lane)
    found[lane] = to_float(from[lane]);
  return found;
}

template <typename T>
Floats elements_at(const T* from) {
  return load(from);
}

float element_at(const float* from, int i) {
  return from[i];
}

float element_at(const std::uint16_t* from, int i) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
}

// Calls `use` with the row in its element type.
template <typename Use>
void with_elements(const void* from, Element element, const Use& use) {
  if (element == Element::kFloat32) {
    use(static_cast<const float*>(from));
  } else if (element == Element::kFloat16) {
    use(static_cast<const Half*>(from));
  } else {
    use(static_cast<const std::uint16_t*>(from));
  }
}

void pack_key(const void* from, Element element, int width, int lane, float* to) {
  with_elements(from, element, [&](auto* row) {
    for (int i = 0; i < width; ++i)
      to[i * kBlock + lane] = element_at(row, i);
  });
}

void widen(const void* from, Element element, int width, float* to) {
  with_elements(from, element, [&](auto* row) {
    int i = 0;
    for (; i + kLanes <= width; i += kLanes)
      store(to + i, elements_at(row + i));
    for (; i < width; ++i)
      to[i] = element_at(row, i);
  });
}

void pack_value(const void* from, Element element, int width, int row, float* to) {
  with_elements(from, element, [&](auto* values) {
    for (int i = 0; i < width; i += kBlock) {
      float* block = to + (std::size_t(i) * kMostRows + std::size_t(row) * kBlock);
      const int count = std::min(kBlock, width - i);
      for (int j = 0; j < count; ++j)
        block[j] = element_at(values, i + j);
      std::fill(block + count, block + kBlock, 0.0F);
    }
  });
}

void narrow(const float* from, int width, Element element, void* to) {
  if (element == Element::kFloat32) {
    std::memcpy(to, from, width * sizeof(float));
    return;
  }
  auto* out = static_cast<std::uint16_t*>(to);
  for (int i = 0; i < width; ++i)
    out[i] = to_bfloat16(from[i]);
}

// Products of R queries with a block of keys: R rows of kBlock, `stride` apart.
template <int R>
void multiply(const float* queries, int width, const float* keys, float* out, int stride) {
  Floats sums[R][kVectors] = {};
  for (int i = 0; i < width; ++i) {
    Floats key[kVectors];  // all first, so that a single register holds broadcasts
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      key[v] = load(keys + i * kBlock + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] += key[v] * queries[r * width + i];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v)
      store(out + r * stride + v * kLanes, sums[r][v]);
  }
}

// Calls `use` with a compile-time number of heads, until all are done.
template <int Most = kHeadRows, typename Use>
void for_heads(int heads, const Use& use) {
  int done = 0;
  for (; done + Most <= heads; done += Most)
    use(std::integral_constant<int, Most>{}, done);
  for (; done + 2 <= heads; done += 2)
    use(std::integral_constant<int, 2>{}, done);
  for (; done < heads; ++done)
    use(std::integral_constant<int, 1>{}, done);
}

void index_scores(const float* queries, const float* weights, int heads, int width,
                  const float* keys, float* out) {
  Floats totals[kVectors] = {};
  for_heads(heads, [&](auto rows, int first) {
    constexpr int R = decltype(rows)::value;
    float products[R * kBlock];
    multiply<R>(queries + std::size_t(first) * width, width, keys, products, kBlock);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        const Floats product = load(products + r * kBlock + v * kLanes);
        const Floats kept = product < 0.0F ? Floats{} : product;  // NaN stays
        totals[v] += kept * weights[first + r];
      }
    }
  });
  for (int v = 0; v < kVectors; ++v)
    store(out + v * kLanes, totals[v]);
}

void pack_pairs(const std::int8_t* from, int width, int lane, std::int16_t* to) {
  std::int16_t* pair = to + 2 * lane;
  for (int i = 0; i + 2 <= width; i += 2, pair += 2 * kBlock) {
    const std::int16_t both[2] = {from[i], from[i + 1]};
    std::memcpy(pair, both, sizeof both);
  }
  if (width % 2 == 0) return;
  pair[0] = from[width - 1];
  pair[1] = 0;
}

#if defined(__AVX512BW__) && defined(__AVX512F__)
using Pairs = __m512i;
Pairs load_pairs(const std::int16_t* from) {
  return _mm512_loadu_si512(from);
}
Pairs twice(const std::int16_t* pair) {
  std::int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return _mm512_set1_epi32(both);
}
Pairs plus_products(Pairs sums, Pairs left, Pairs right) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(left, right));
}
Floats as_floats(Pairs sums) {
  return std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums));
}
#elif defined(__AVX2__)
using Pairs = __m256i;
Pairs load_pairs(const std::int16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
Pairs twice(const std::int16_t* pair) {
  std::int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return _mm256_set1_epi32(both);
}
Pairs plus_products(Pairs sums, Pairs left, Pairs right) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(left, right));
}
Floats as_floats(Pairs sums) {
  return std::bit_cast<Floats>(_mm256_cvtepi32_ps(sums));
}
#else
struct Pairs {
  std::int32_t lanes[kLanes];  // sums; or two channels each
};
Pairs load_pairs(const std::int16_t* from) {
  Pairs found;
  std::memcpy(&found, from, sizeof found);
  return found;
}
Pairs twice(const std::int16_t* pair) {
  Pairs found;
  for (auto& lane : found.lanes)
    std::memcpy(&lane, pair, sizeof lane);
  return found;
}
Pairs plus_products(Pairs sums, const Pairs& left, const Pairs& right) {
  std::int16_t a[2 * kLanes], b[2 * kLanes];
  std::memcpy(a, &left, sizeof a);
  std::memcpy(b, &right, sizeof b);
  for (int lane = 0; lane < kLanes; ++lane)
    sums.lanes[lane] += a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1];
  return sums;
}
Floats as_floats(const Pairs& sums) {
  Floats found;
  for (int lane = 0; lane < kLanes; ++lane)
    found[lane] = static_cast<float>(sums.lanes[lane]);
  return found;
}
#endif

static_assert(sizeof(Pairs) == sizeof(Floats));

void index_scores_int8(const Int8Heads& heads, const std::int16_t* keys, const float* key_scales,
                       float* out) {
  Floats totals[kVectors] = {};
  for_heads<kPairRows>(heads.heads, [&](auto rows, int first) {
    constexpr int R = decltype(rows)::value;
    Pairs sums[R][kVectors] = {};
    const std::int16_t* queries = heads.queries + std::size_t(first) * heads.pairs * 2;
    for (int i = 0; i < heads.pairs; ++i) {
      Pairs key[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        key[v] = load_pairs(keys + (i * kBlock + v * kLanes) * 2);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const Pairs query = twice(queries + (std::size_t(r) * heads.pairs + i) * 2);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          sums[r][v] = plus_products(sums[r][v], key[v], query);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        const Floats product =
            as_floats(sums[r][v]) * heads.scales[first + r] * load(key_scales + v * kLanes);
        const Floats kept = product < 0.0F ? Floats{} : product;  // NaN stays
        totals[v] += kept * heads.weights[first + r];
      }
    }
  });
  for (int v = 0; v < kVectors; ++v)
    store(out + v * kLanes, totals[v]);
}

// The larger of each lane; NaN in either wins.
Floats largest_or_nan(Floats left, Floats right) {
  const Floats larger = left > right ? left : right;
  return left == left ? larger : left;
}

// Scores become exponentials relative to the maximum so far; earlier sums are rescaled.
void exponentials(const HeadGroup& group, int head, int rows, float* scores) {
  const int padded = rounded_up(rows);
  for (int i = 0; i < padded; i += kLanes)
    store(scores + i, load(scores + i) * group.scale);
  std::fill(scores + rows, scores + padded, -kInfinity);
  Floats most = all(group.largest[head]);
  for (int i = 0; i < padded; i += kLanes)
    most = largest_or_nan(most, load(scores + i));
  float largest = most[0];
  for (int lane = 1; lane < kLanes; ++lane)
    largest = largest > most[lane] || largest != largest ? largest : most[lane];
  if (largest == -kInfinity) {  // no weight so far
    std::fill(scores, scores + padded, 0.0F);
    return;
  }
  Floats total = {};
  for (int i = 0; i < padded; i += kLanes) {
    Floats share = exponential(load(scores + i) - largest);
    store(scores + i, share);
    total += share;
  }
  // Lanes beyond `rows` are e^-inf, 0; or NaN, as the whole head is then.
  const float before = group.largest[head];
  const Floats shrink = before == -kInfinity ? Floats{} : exponential(all(before - largest));
  if (shrink[0] != 1.0F) {
    float* values = group.values + std::size_t(head) * rounded_up(group.value_width);
    for (int i = 0; i < rounded_up(group.value_width); i += kLanes)
      store(values + i, before == -kInfinity ? Floats{} : load(values + i) * shrink);
  }
  group.sums[head] = group.sums[head] * shrink[0] + sum(total);
  group.largest[head] = largest;
}

template <int R>
void add_values(const HeadGroup& group, int first, const float* shares, const float* values,
                int rows, int channel) {
  const int padded = rounded_up(group.value_width);
  float* out = group.values + std::size_t(first) * padded + channel;
  Floats sums[R][kVectors] = {};
  for (int row = 0; row < rows; ++row) {
    Floats value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      value[v] = load(values + row * kBlock + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] += value[v] * shares[r * kMostRows + row];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = out + std::size_t(r) * padded + v * kLanes;
      store(to, load(to) + sums[r][v]);
    }
  }
}

void attend(const HeadGroup& group, const float* keys, const float* values, int rows,
            float* scratch) {
  for (int block = 0; block * kBlock < rows; ++block) {
    const float* packed = keys + std::size_t(block) * kBlock * group.width;
    for_heads(group.heads, [&](auto count, int first) {
      constexpr int R = decltype(count)::value;
      multiply<R>(group.queries + std::size_t(first) * group.width, group.width, packed,
                  scratch + first * kMostRows + block * kBlock, kMostRows);
    });
  }
  for (int head = 0; head < group.heads; ++head)
    exponentials(group, head, rows, scratch + head * kMostRows);
  for (int channel = 0; channel < group.value_width; channel += kBlock) {
    for_heads(group.heads, [&](auto count, int first) {
      add_values<decltype(count)::value>(group, first, scratch + first * kMostRows,
                                         values + std::size_t(channel) * kMostRows, rows, channel);
    });
  }
}

void finish(const HeadGroup& group, Element element, void* out) {
  const std::size_t size = element == Element::kFloat32 ? sizeof(float) : sizeof(std::uint16_t);
  const int padded = rounded_up(group.value_width);
  for (int head = 0; head < group.heads; ++head) {
    float* values = group.values + std::size_t(head) * padded;
    const float inverse = 1.0F / group.sums[head];  // 0 * inf is NaN where all scores are -inf
    for (int i = 0; i < group.value_width; ++i)
      values[i] *= inverse;
    narrow(values, group.value_width, element,
           static_cast<char*>(out) + std::size_t(head) * group.value_width * size);
  }
}

}  // namespace

extern const SparseKernels kSparseKernels;
const SparseKernels kSparseKernels = {NPU_SET_NAME, pack_key,   pack_value,        widen,  narrow,
                                      index_scores, pack_pairs, index_scores_int8, attend, finish};

}  // namespace npu::ops::sparse_attention::NPU_SET
