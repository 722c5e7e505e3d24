// The row kernels of one instruction set; compiled once for each (CMakeLists.txt).
#include "kernel_programs/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernel_programs/activation_vectors.h"
#include "kernel_programs/attention.h"
#include "kernel_programs/key_bounds.h"

namespace npu::ops::kernel_programs::NPU_SET {
namespace {

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
    bad += from[i] - from[i];  // NaN for NaN and infinities, which must not become finite
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

std::int64_t argmax(const float* x, std::int64_t width) {
  constexpr int kChains = 4;  // a maximum depends on the previous one
  Floats most[kChains];
  Integers is_nan[kChains] = {};
  std::fill(most, most + kChains, all(-kInfinity));
  std::int64_t i = 0;
  for (; i + kChains * kLanes <= width; i += kChains * kLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      const Floats v = load(x + i + chain * kLanes);
      most[chain] = largest(v, most[chain]);
      is_nan[chain] |= v != v;
    }
  }
  bool has_nan = sum(is_nan[0] | is_nan[1] | is_nan[2] | is_nan[3]) != 0;
  float top = largest_of(largest(largest(most[0], most[1]), largest(most[2], most[3])));
  for (; i < width; ++i) {
    has_nan |= std::isnan(x[i]);
    top = x[i] > top ? x[i] : top;
  }
  const float* end = x + width;
  const float* found = has_nan ? std::find_if(x, end, [](float v) { return std::isnan(v); })
                               : std::find(x, end, top);
  return found - x;
}

void weigh(const float* scores, std::int64_t width, float temperature, float* weights, double* sums,
           float* most_of_parts) {
  const auto largest_in = [](const float* x, std::int64_t count) {
    Floats most = all(-kInfinity);
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      most = largest(load(x + i), most);
    float top = largest_of(most);
    for (; i < count; ++i)
      top = std::max(top, x[i]);
    return top;
  };
  const float top = largest_in(scores, width),
              factor = std::min(1.0F / temperature, std::numeric_limits<float>::max());
  for (std::int64_t start = 0; start < width; start += kWeighedPart) {
    const std::int64_t end = std::min(start + kWeighedPart, width);
    Floats sum_of_part = {};
    for (std::int64_t i = start; i < end; i += kLanes) {
      const int count = static_cast<int>(std::min<std::int64_t>(kLanes, end - i));
      store_some(weights + i, exponential_to_one((load_some(scores + i, count) - top) * factor),
                 count);
      sum_of_part += load_some(weights + i, count);
    }
    *sums++ = sum(sum_of_part);
    *most_of_parts++ = largest_in(weights + start, end - start);
  }
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {NPU_SET_NAME, norm,   rotate, combine, append, note_bounds, bound,
                                ready,        attend, merge,  finish,  argmax, weigh};

}  // namespace npu::ops::kernel_programs::NPU_SET
