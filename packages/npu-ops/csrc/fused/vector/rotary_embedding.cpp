// Rotation of pairs: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).

#include "kernels.h"
#include "lanes.h"
#include "table.h"

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {
namespace {

// Pairs (i, i + half).
template <typename T>
void rotate_halves(const T* x, const sum_t<T>* cos, const sum_t<T>* sin, T* y, std::int64_t half) {
  using L = Lanes<T>;
  using W = Lanes<sum_t<T>>;
  for (std::int64_t i = 0; i < half; i += L::kSize) {
    const std::int64_t count = std::min(L::kSize, half - i);
    const L p = L::load(x + i, count), q = L::load(x + half + i, count);
    const W c = W::load(cos + i, count), s = W::load(sin + i, count);
    L{p.a * c.a - q.a * s.a, p.b * c.b - q.b * s.b}.store(y + i, count);
    L{q.a * c.a + p.a * s.a, q.b * c.b + p.b * s.b}.store(y + half + i, count);
  }
}

// Pairs (2i, 2i + 1).
template <typename T>
void rotate_neighbours(const T* x, const sum_t<T>* cos, const sum_t<T>* sin, T* y,
                       std::int64_t half) {
  using L = Lanes<T>;
  using V = typename L::V;
  using S = sum_t<T>;
  std::int64_t i = 0;
  for (; i + V::size() <= half; i += V::size()) {
    const L v = L::load(x + 2 * i);
    const auto [p, q] = at::vec::deinterleave2<S>(v.a, v.b);
    const V c = V::loadu(cos + i), s = V::loadu(sin + i);
    const auto [first, second] = at::vec::interleave2<S>(p * c - q * s, q * c + p * s);
    L{first, second}.store(y + 2 * i);
  }
  for (; i < half; ++i) {
    const S p = static_cast<S>(x[2 * i]), q = static_cast<S>(x[2 * i + 1]);
    y[2 * i] = static_cast<T>(p * cos[i] - q * sin[i]);
    y[2 * i + 1] = static_cast<T>(q * cos[i] + p * sin[i]);
  }
}

}  // namespace

void rotate_rows(const RotaryArguments& given, at::ScalarType type) {
  NPU_FOR_FLOAT_TYPES(type, "npu_rotary_embedding", [&] {
    const std::int64_t rotated = 2 * given.half;
    const std::int64_t rows = given.batch * given.heads * given.length;
    at::parallel_for(
        0, rows, rows_per_thread(given.width), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t position = row % given.length;
            const std::int64_t head = row / given.length % given.heads;
            const std::int64_t item = row / (given.length * given.heads);
            const scalar_t* x = static_cast<const scalar_t*>(given.x) + item * given.x_strides[0] +
                                head * given.x_strides[1] + position * given.x_strides[2];
            scalar_t* y = static_cast<scalar_t*>(given.y) + item * given.y_strides[0] +
                          head * given.y_strides[1] + position * given.y_strides[2];
            const std::int64_t at = item * given.table_batch_stride + position * given.half;
            const auto* cos = static_cast<const sum_t<scalar_t>*>(given.cos) + at;
            const auto* sin = static_cast<const sum_t<scalar_t>*>(given.sin) + at;
            if (given.interleaved) {
              rotate_neighbours(x, cos, sin, y, given.half);
            } else {
              rotate_halves(x, cos, sin, y, given.half);
            }
            std::copy(x + rotated, x + given.width, y + rotated);
          }
        });
  });
}

}  // namespace CPU_CAPABILITY
}  // namespace npu::ops::fused
