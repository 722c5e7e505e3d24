// RMS normalization of rows.

#include "kernels.h"
#include "lanes.h"
#include "table.h"

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {
namespace {

template <typename T>
void normalize_row(const T* x, const sum_t<T>* weight, T* y, std::int64_t width, double eps) {
  using L = Lanes<T>;
  using V = typename L::V;
  using S = sum_t<T>;
  V sum_a(S(0)), sum_b(S(0));
  for (std::int64_t i = 0; i < width; i += L::kSize) {
    const L v = L::load(x + i, std::min(L::kSize, width - i));
    sum_a = at::vec::fmadd(v.a, v.a, sum_a);
    sum_b = at::vec::fmadd(v.b, v.b, sum_b);
  }
  const S total =
      at::vec::vec_reduce_all<S>([](V p, V q) { return p + q; }, sum_a + sum_b, V::size());
  const S inverse = S(1) / std::sqrt(total / static_cast<S>(width) + static_cast<S>(eps));
  const V factor(inverse);
  for (std::int64_t i = 0; i < width; i += L::kSize) {
    const std::int64_t count = std::min(L::kSize, width - i);
    const L v = L::load(x + i, count);
    const Lanes<S> w = Lanes<S>::load(weight + i, count);
    L{v.a * factor * w.a, v.b * factor * w.b}.store(y + i, count);
  }
}

}  // namespace

void rms_norm_rows(const RmsNormArguments& given, at::ScalarType type) {
  NPU_FOR_FLOAT_TYPES(type, "npu_rms_norm", [&] {
    at::parallel_for(0, given.rows, rows_per_thread(given.width),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t row = begin; row < end; ++row) {
                         normalize_row(static_cast<const scalar_t*>(given.x) + row * given.x_stride,
                                       static_cast<const sum_t<scalar_t>*>(given.weight),
                                       static_cast<scalar_t*>(given.y) + row * given.width,
                                       given.width, given.eps);
                       }
                     });
  });
}

}  // namespace CPU_CAPABILITY
}  // namespace npu::ops::fused
