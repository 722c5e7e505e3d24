// Integer weights times float rows: read once, widened in registers.

#include "kernels.h"
#include "lanes.h"
#include "table.h"

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {
namespace {

using V = at::vec::Vectorized<float>;
using I = at::vec::Vectorized<std::int32_t>;
constexpr std::int64_t kLanes = V::size();
// Rows of x that share one pass over a row of the weight.
constexpr std::int64_t kRows = 4;

template <typename Byte>
I integers_at(const Byte* from) {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  return at::vec::convert_to_int32<Byte>(from);
#else
  std::int32_t wide[I::size()];
  std::copy(from, from + I::size(), wide);
  return I::loadu(wide);
#endif
}

V widened(const I& integers) {
  return at::vec::convert_to_fp_of_same_size<float>(integers);
}

float sum_of(const V& v) {
  return at::vec::vec_reduce_all<float>([](V p, V q) { return p + q; }, v, V::size());
}

// Sums of rows of x times one row of the weight: in lanes, because a horizontal sum costs as much
// as a group of 64, and the remainder that does not fill a vector.
template <std::int64_t R>
struct Sums {
  V lanes[R];
  float rest[R] = {};

  Sums() {
    for (V& lane : lanes)
      lane = V(0.f);
  }
};

// sums[r] += sum_k x[r, k] * w[k] over one group of bytes.
template <typename Byte, std::int64_t R>
void add_bytes(const float* x, std::int64_t x_stride, const Byte* w, std::int64_t count,
               Sums<R>& sums) {
  std::int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    const V wide = widened(integers_at(w + k));
    for (std::int64_t r = 0; r < R; ++r)
      sums.lanes[r] = at::vec::fmadd(V::loadu(x + r * x_stride + k), wide, sums.lanes[r]);
  }
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t j = k; j < count; ++j)
      sums.rest[r] += x[r * x_stride + j] * static_cast<float>(w[j]);
  }
}

// The same over one group of nibbles; x has the even elements of the group, then the odd ones.
template <std::int64_t R>
void add_nibbles(const float* x, std::int64_t x_stride, const std::uint8_t* w, std::int64_t count,
                 Sums<R>& sums) {
  const std::int64_t half = count / 2;
  const I mask(15), shift(4);
  std::int64_t k = 0;
  for (; k + kLanes <= half; k += kLanes) {
    const I both = integers_at(w + k);
    const V low = widened(both & mask), high = widened(both >> shift);
    for (std::int64_t r = 0; r < R; ++r) {
      const float* row = x + r * x_stride + k;
      sums.lanes[r] = at::vec::fmadd(V::loadu(row), low, sums.lanes[r]);
      sums.lanes[r] = at::vec::fmadd(V::loadu(row + half), high, sums.lanes[r]);
    }
  }
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t j = k; j < half; ++j) {
      sums.rest[r] += x[r * x_stride + j] * static_cast<float>(w[j] & 15);
      sums.rest[r] += x[r * x_stride + half + j] * static_cast<float>(w[j] >> 4);
    }
  }
}

template <std::int64_t R>
void add_group(const QuantizedLinearArguments& given, const float* x, std::int64_t first,
               std::int64_t size, Sums<R>& sums) {
  switch (given.kind) {
    case WeightKind::kInt8:
      add_bytes<std::int8_t, R>(x, given.inputs,
                                static_cast<const std::int8_t*>(given.weight) + first, size, sums);
      return;
    case WeightKind::kUint8:
      add_bytes<std::uint8_t, R>(
          x, given.inputs, static_cast<const std::uint8_t*>(given.weight) + first, size, sums);
      return;
    case WeightKind::kUint4:
      add_nibbles<R>(x, given.inputs, static_cast<const std::uint8_t*>(given.weight) + first / 2,
                     size, sums);
  }
}

template <std::int64_t R>
void rows_times_output(const QuantizedLinearArguments& given, std::int64_t row, std::int64_t n) {
  const std::int64_t size = given.inputs / given.groups;
  Sums<R> total;
  for (std::int64_t g = 0; g < given.groups; ++g) {
    Sums<R> group;
    const float* x = given.x + row * given.inputs + g * size;
    add_group<R>(given, x, n * given.inputs + g * size, size, group);
    const float scale = given.scale[n * given.groups + g];
    const float zero = given.zero_point[n * given.groups + g];
    const V factor(scale);
    for (std::int64_t r = 0; r < R; ++r) {
      const float shift = zero * given.group_sums[(row + r) * given.groups + g];
      total.lanes[r] = at::vec::fmadd(group.lanes[r], factor, total.lanes[r]);
      total.rest[r] += scale * (group.rest[r] - shift);
    }
  }
  const float bias = given.bias == nullptr ? 0.f : given.bias[n];
  for (std::int64_t r = 0; r < R; ++r)
    given.y[(row + r) * given.outputs + n] = sum_of(total.lanes[r]) + total.rest[r] + bias;
}

template <typename T, typename Q>
void widen_bytes(const Q* from, std::int64_t size, float zero, float scale, T* to) {
  for (std::int64_t k = 0; k < size; ++k)
    to[k] = static_cast<T>((static_cast<float>(from[k]) - zero) * scale);
}

// Both halves of a byte per iteration: a branch per element would keep the loop out of registers.
template <typename T>
void widen_nibbles(const std::uint8_t* from, std::int64_t size, float zero, float scale, T* to) {
  for (std::int64_t k = 0; k < size / 2; ++k) {
    to[2 * k] = static_cast<T>((static_cast<float>(from[k] & 15) - zero) * scale);
    to[2 * k + 1] = static_cast<T>((static_cast<float>(from[k] >> 4) - zero) * scale);
  }
}

template <typename T>
void dequantize_output(const DequantizeArguments& given, std::int64_t n) {
  const std::int64_t size = given.inputs / given.groups;
  for (std::int64_t g = 0; g < given.groups; ++g) {
    const float scale = given.scale[n * given.groups + g];
    const float zero = given.zero_point[n * given.groups + g];
    const std::int64_t first = n * given.inputs + g * size;
    T* to = static_cast<T*>(given.w) + first;
    switch (given.kind) {
      case WeightKind::kInt8:
        widen_bytes(static_cast<const std::int8_t*>(given.weight) + first, size, zero, scale, to);
        break;
      case WeightKind::kUint8:
        widen_bytes(static_cast<const std::uint8_t*>(given.weight) + first, size, zero, scale, to);
        break;
      case WeightKind::kUint4:
        widen_nibbles(static_cast<const std::uint8_t*>(given.weight) + first / 2, size, zero, scale,
                      to);
    }
  }
}

}  // namespace

void quantized_linear_rows(const QuantizedLinearArguments& given) {
  at::parallel_for(0, given.outputs, rows_per_thread(given.inputs),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t n = begin; n < end; ++n) {
                       std::int64_t row = 0;
                       for (; row + kRows <= given.rows; row += kRows)
                         rows_times_output<kRows>(given, row, n);
                       for (; row < given.rows; ++row)
                         rows_times_output<1>(given, row, n);
                     }
                   });
}

void dequantize_rows(const DequantizeArguments& given, at::ScalarType type) {
  NPU_FOR_FLOAT_TYPES(type, "npu_quantized_linear", [&] {
    at::parallel_for(0, given.outputs, rows_per_thread(given.inputs),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t n = begin; n < end; ++n)
                         dequantize_output<scalar_t>(given, n);
                     });
  });
}

}  // namespace CPU_CAPABILITY
}  // namespace npu::ops::fused
