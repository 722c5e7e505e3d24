// Rows to int8 by their largest magnitude.

#include "kernels.h"
#include "lanes.h"
#include "table.h"

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {
namespace {

template <typename T>
void quantize_row(const T* x, std::int8_t* values, float* scale, std::int64_t width) {
  using L = Lanes<T>;
  using V = typename L::V;
  using S = sum_t<T>;
  V peak(S(0));
  for (std::int64_t i = 0; i < width; i += L::kSize) {
    const L v = L::load(x + i, std::min(L::kSize, width - i));
    peak = at::vec::maximum(peak, at::vec::maximum(v.a.abs(), v.b.abs()));
  }
  const S largest =
      at::vec::vec_reduce_all<S>([](V p, V q) { return at::vec::maximum(p, q); }, peak, V::size());
  const S step = largest / S(127);
  *scale = static_cast<float>(step);
  // Zeros stay zero; a non-finite row has values of 0 and a non-finite scale.
  const bool is_usable = step > S(0) && std::isfinite(step);
  const V divisor(is_usable ? step : S(1));
  const V low(S(-127)), high(S(127));
  alignas(64) S rounded[L::kSize];
  for (std::int64_t i = 0; i < width; i += L::kSize) {
    const std::int64_t count = std::min(L::kSize, width - i);
    if (!is_usable) {
      std::fill(values + i, values + i + count, std::int8_t{0});
      continue;
    }
    const L v = L::load(x + i, count);
    at::vec::clamp((v.a / divisor).round(), low, high).store(rounded);
    at::vec::clamp((v.b / divisor).round(), low, high).store(rounded + V::size());
    for (std::int64_t k = 0; k < count; ++k)
      values[i + k] = static_cast<std::int8_t>(rounded[k]);
  }
}

}  // namespace

void quantize_rows(const QuantizeArguments& given, at::ScalarType type) {
  NPU_FOR_FLOAT_TYPES(type, "npu_dynamic_quantize", [&] {
    at::parallel_for(
        0, given.rows, rows_per_thread(given.width), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            quantize_row(static_cast<const scalar_t*>(given.x) + row * given.width,
                         given.values + row * given.width, given.scale + row, given.width);
          }
        });
  });
}

}  // namespace CPU_CAPABILITY
}  // namespace npu::ops::fused
