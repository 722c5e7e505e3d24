// silu(gate) * up, row by row.

#include "kernels.h"
#include "lanes.h"
#include "table.h"

namespace npu::ops::fused {
inline namespace CPU_CAPABILITY {
namespace {

template <typename V, typename S>
V gated(const V& gate, const V& up) {
  return gate / (V(S(1)) + gate.neg().exp()) * up;
}

template <typename T>
void gate_row(const T* gate, const T* up, T* y, std::int64_t width) {
  using L = Lanes<T>;
  using V = typename L::V;
  using S = sum_t<T>;
  for (std::int64_t i = 0; i < width; i += L::kSize) {
    const std::int64_t count = std::min(L::kSize, width - i);
    const L g = L::load(gate + i, count);
    const L u = L::load(up + i, count);
    L{gated<V, S>(g.a, u.a), gated<V, S>(g.b, u.b)}.store(y + i, count);
  }
}

}  // namespace

void swiglu_rows(const SwigluArguments& given, at::ScalarType type) {
  NPU_FOR_FLOAT_TYPES(type, "npu_swiglu", [&] {
    const auto* gate = static_cast<const scalar_t*>(given.gate);
    const auto* up = static_cast<const scalar_t*>(given.up);
    auto* y = static_cast<scalar_t*>(given.y);
    // A row may be the whole tensor, so work is split inside rows.
    constexpr std::int64_t kBlock = 4096;
    const std::int64_t blocks = (given.width + kBlock - 1) / kBlock;
    at::parallel_for(0, given.rows * blocks, rows_per_thread(std::min(kBlock, given.width)),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t share = begin; share < end; ++share) {
                         const std::int64_t row = share / blocks, first = share % blocks * kBlock;
                         gate_row(gate + row * given.gate_stride + first,
                                  up + row * given.up_stride + first, y + row * given.width + first,
                                  std::min(kBlock, given.width - first));
                       }
                     });
  });
}

}  // namespace CPU_CAPABILITY
}  // namespace npu::ops::fused
