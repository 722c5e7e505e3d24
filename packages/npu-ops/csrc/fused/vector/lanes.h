// Elements of any float type as a pair of vectors of the accumulation type: float32, or float64 for
// float64.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#define NPU_FOR_FLOAT_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, TYPE, NAME, __VA_ARGS__)

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {

template <typename T>
using sum_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
struct Lanes {
  using V = at::vec::Vectorized<sum_t<T>>;
  static constexpr std::int64_t kSize = 2 * V::size();
  V a, b;

  // Lanes from `count` on are 0.
  static Lanes load(const T* from, std::int64_t count = kSize) {
    if constexpr (std::is_same_v<T, sum_t<T>>) {
      if (count == kSize) return {V::loadu(from), V::loadu(from + V::size())};
      const std::int64_t first = std::min<std::int64_t>(count, V::size());
      const std::int64_t second = count - first;
      return {V::loadu(from, first),
              second > 0 ? V::loadu(from + V::size(), second) : V(sum_t<T>(0))};
    } else {
      using Narrow = at::vec::Vectorized<T>;
      const auto [a, b] = at::vec::convert_to_float<T>(count == kSize ? Narrow::loadu(from)
                                                                      : Narrow::loadu(from, count));
      return {a, b};
    }
  }

  void store(T* to, std::int64_t count = kSize) const {
    if constexpr (std::is_same_v<T, sum_t<T>>) {
      if (count == kSize) {
        a.store(to);
        b.store(to + V::size());
        return;
      }
      const std::int64_t first = std::min<std::int64_t>(count, V::size());
      a.store(to, first);
      if (count > first) b.store(to + V::size(), count - first);
    } else {
      at::vec::convert_from_float<T>(a, b).store(to, count);
    }
  }
};

// Minimum rows for another thread: about 32k elements.
inline std::int64_t rows_per_thread(std::int64_t width) {
  return std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(width, 1));
}

}  // namespace CPU_CAPABILITY
}  // namespace npu::ops::fused
