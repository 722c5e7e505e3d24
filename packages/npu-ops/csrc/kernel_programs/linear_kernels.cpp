// The linear kernels of one instruction set; compiled once for each (CMakeLists.txt).
//
// Outputs are the lanes: nothing is ever added across lanes. Integers are summed for a slab of 64
// inputs, then scaled; slabs are added in their order, whatever the number of rows.
#include "kernel_programs/linear.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernel_programs/activation_vectors.h"
#include "kernel_programs/slab_products.h"

namespace npu::ops::kernel_programs::NPU_SET {
namespace {

// total += (sums - zeros * sum of x) * scales
void add_scaled(Wide& total, const Sums& sums, const Wide& zeros, float sum_of_x,
                const Wide& scales, float scale_of_x) {
  const Wide values = to_floats(sums);
  for (int i = 0; i < kParts; ++i) {
    const Floats value = values.part[i] - zeros.part[i] * sum_of_x;
    total.part[i] += value * (scales.part[i] * scale_of_x);
  }
}

// Rows of integers from `row` on, slab by slab.
template <int R>
struct Slabs {
  const Activations& x;
  int row, slabs;

  std::size_t place(int r, int slab) const { return std::size_t(row + r) * slabs + slab; }
  float scale(int r, int slab) const { return x.scales[place(r, slab)]; }
  const float* sums(int r, int slab) const { return x.sums + kSumsOfSlab * place(r, slab); }
  float sum(int r, int slab) const { return sums(r, slab)[0]; }
  // The integers of a slab. With few rows, those of the next are fetched: the processor foresees no
  // rows this short. Many rows wait for their products, and each fetch takes the place of a load.
  std::array<const std::int8_t*, R> rows(int slab) const {
    std::array<const std::int8_t*, R> of_row;
    for (int r = 0; r < R; ++r) {
      of_row[r] = x.integers + place(r, slab) * kSlabInputs;
      if constexpr (R <= kFewRows) __builtin_prefetch(of_row[r] + kSlabInputs);
    }
    return of_row;
  }
};

template <int R>
void multiply8(const PackedLinear& weight, int block, const Slabs<R>& x, Wide (&total)[R]) {
  const std::uint8_t* data = weight.data + block * weight.block_bytes();
  const int first = block * kBlockOutputs, count = std::min(kBlockOutputs, weight.outputs - first);
  std::uint8_t values[kBlockOutputs];
  std::memset(values, 128, sizeof values);
  if (weight.zeros != nullptr) std::memcpy(values, weight.zeros + first, count);
  Wide zeros = load_wide(values);
  for (Floats& part : zeros.part)
    part -= float{kOffset8};
  const Wide ones = same(1);
  for (int slab = 0; slab < x.slabs; ++slab, data += kSlabInputs * kBlockOutputs) {
    Sums sums[R];
    add_slab8<R>(data, x.rows(slab).data(), sums);
    for (int r = 0; r < R; ++r) {
      add_scaled(total[r], sums[r], zeros, x.sum(r, slab), ones, x.scale(r, slab));
    }
  }
  float scales[kBlockOutputs] = {};
  std::memcpy(scales, static_cast<const float*>(weight.scales) + first, count * sizeof(float));
  const Wide factors = load_wide(scales);
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kParts; ++i)
      total[r].part[i] *= factors.part[i];
  }
}

template <int R>
void multiply4(const PackedLinear& weight, int block, const Slabs<R>& x, Wide (&total)[R]) {
  const int groups = weight.groups();
  const std::uint8_t* data = weight.data + block * weight.block_bytes();
  const std::size_t first_group = std::size_t(block) * groups * kBlockOutputs;
  const Half* scales = static_cast<const Half*>(weight.scales) + first_group;
  const std::uint8_t* zeros = weight.zeros == nullptr ? nullptr : weight.zeros + first_group;
  const auto zeros_of = [&](int group) {
    return zeros == nullptr ? same(8) : load_wide(zeros + std::size_t(group) * kBlockOutputs);
  };
  const auto scales_of = [&](int group) {
    return load_wide(scales + std::size_t(group) * kBlockOutputs);
  };
  for (int slab = 0; slab < x.slabs; ++slab, data += kSlabInputs * kBlockOutputs / 2) {
    const int group = slab * kSlabInputs / weight.group;
    const Wide scale = scales_of(group), zero = zeros_of(group);
    if (weight.group != 32) {
      Sums both[R];
      add_whole_slab4<R>(data, x.rows(slab).data(), both);
      for (int r = 0; r < R; ++r) {
        add_scaled(total[r], both[r], zero, x.sum(r, slab), scale, x.scale(r, slab));
      }
      continue;
    }
    Sums low[R], high[R];
    add_slab4<R>(data, x.rows(slab).data(), low, high);
    // Each half has a scale; the last slab may have but one group.
    const bool has_two = group + 1 < groups;
    const Wide next_scale = has_two ? scales_of(group + 1) : scale;
    const Wide next_zero = has_two ? zeros_of(group + 1) : zero;
    for (int r = 0; r < R; ++r) {
      const float* sums = x.sums(r, slab);
      add_scaled(total[r], low[r], zero, sums[1], scale, x.scale(r, slab));
      add_scaled(total[r], high[r], next_zero, sums[2], next_scale, x.scale(r, slab));
    }
  }
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
    const Wide weights = load_wide(data);
    if constexpr (R <= 4) fetch(data);
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

// Not inlined, as a gated tile has two.
template <int R>
[[gnu::noinline]] void multiply(const PackedLinear& weight, int block, const Activations& x,
                                int row, Wide (&total)[R]) {
  for (int r = 0; r < R; ++r)
    total[r] = same(0);
  const Slabs<R> slabs{x, row, weight.slabs()};
  switch (weight.kind) {
    case Kind::float32:
      return multiply_floats<float>(weight, block, x, row, total);
    case Kind::bfloat16:
      return multiply_floats<std::uint16_t>(weight, block, x, row, total);
    case Kind::float16:
      return multiply_floats<Half>(weight, block, x, row, total);
    case Kind::int8:
      return multiply8(weight, block, slabs, total);
    case Kind::int4:
      return multiply4(weight, block, slabs, total);
  }
}

void add_bias(Wide& values, const float* bias, int count) {
  for (int i = 0; i < kParts; ++i) {
    values.part[i] += load_some(bias + i * kLanes, std::clamp(count - i * kLanes, 0, kLanes));
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

// As many rows at once as leave their sums in registers.
constexpr int kMostRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 4;

using Tile = void (*)(const PackedLinear&, const Activations&, int, float*, std::size_t, int,
                      const Finish&);

template <int... R>
constexpr std::array<Tile, sizeof...(R)> make_tiles(std::integer_sequence<int, R...>) {
  return {tile<R + 1>...};
}

constexpr std::array kTiles = make_tiles(std::make_integer_sequence<int, kMostRows>());

constexpr int kRowsOfPass = 8 * kMostRows;  // as many as stay in a near cache from block to block

void linear(const PackedLinear& weight, const Activations& x, int rows, float* out,
            std::size_t out_stride, int first_block, int last_block, const Finish& finish) {
  for (int start = 0; start < rows; start += kRowsOfPass) {
    const int end = std::min(rows, start + kRowsOfPass);
    const int tiles = (end - start + kMostRows - 1) / kMostRows;
    for (int block = first_block; block < last_block; block += finish.gated ? 2 : 1) {
      for (int i = 0, row = start; i < tiles; ++i) {
        const int count = (end - row) / (tiles - i);  // of nearly equal size
        kTiles[count - 1](weight, x, row, out, out_stride, block, finish);
        row += count;
      }
    }
  }
}

void quantize(const float* x, int inputs, std::int8_t* integers, float* scales, float* sums) {
  for (int start = 0; start < inputs; start += kSlabInputs) {
    float slab[kSlabInputs] = {};
    std::memcpy(slab, x + start, std::min(kSlabInputs, inputs - start) * sizeof(float));
    Floats most = {}, bad = {};
    for (int i = 0; i < kSlabInputs; i += kLanes) {
      const Floats v = load(slab + i);
      most = largest(most, v < 0.0F ? -v : v);
      bad += v - v;  // NaN for NaN and infinities, else 0
    }
    const float top = largest_of(most);
    const float wrong = sum(bad);
    const bool is_empty = !(top > 1e-30F) || wrong != wrong;
    const float inverse = is_empty ? 0.0F : 127.0F / top;
    Integers totals[2] = {};
    for (int i = 0; i < kSlabInputs; i += kLanes) {
      const Floats v = is_empty ? Floats{} : load(slab + i) * inverse;
      const Floats shifted = v + 12582912.0F;  // rounds to the nearest whole number
      const Integers whole = std::bit_cast<Integers>(shifted) - std::int32_t{0x4B400000};
      totals[i / (kSlabInputs / 2)] += whole;
      using Signed = std::int8_t __attribute__((vector_size(kLanes)));
      const Signed narrow = __builtin_convertvector(whole, Signed);
      std::memcpy(integers + start + i, &narrow, kLanes);
    }
    sums[1] = static_cast<float>(sum(totals[0]));
    sums[2] = static_cast<float>(sum(totals[1]));
    sums[0] = sums[1] + sums[2];
    sums += kSumsOfSlab;
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
