// The linear kernels of one instruction set; compiled once for each (CMakeLists.txt).
//
// Outputs are the lanes: nothing is ever added across lanes. Integers are summed for a slab of 64
// inputs, then scaled; slabs are added in their order, whatever the number of rows.
#include "kernel_programs/linear.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "kernel_programs/activation_vectors.h"
#include "kernel_programs/amx_products.h"
#include "kernel_programs/block_slabs.h"
#include "kernel_programs/slab_products.h"

namespace npu::ops::kernel_programs::NPU_SET {
namespace {

// total += (sums - zeros * sum of x) * scales
void add_scaled(Floats16& total, const Sums& sums, const Floats16& zeros, float sum_of_x,
                const Floats16& scales, float scale_of_x) {
  const Floats16 values = to_floats(sums);
  for (int i = 0; i < kParts; ++i) {
    const Floats value = values.part[i] - zeros.part[i] * sum_of_x;
    total.part[i] += value * (scales.part[i] * scale_of_x);
  }
}

// For the outputs of an 8-bit block: the zero point, minus the offset that the products subtract.
Floats16 zeros8(const PackedLinear& weight, int block) {
  const int first = block * kBlockOutputs;
  std::uint8_t values[kBlockOutputs];
  std::memset(values, 128, sizeof values);
  if (weight.zeros != nullptr) {
    std::memcpy(values, weight.zeros + first, std::min(kBlockOutputs, weight.outputs - first));
  }
  Floats16 zeros = load_wide(values);
  for (Floats& part : zeros.part)
    part -= float{kOffset8};
  return zeros;
}

// The sums of all slabs, scaled.
template <int R>
void scale8(const PackedLinear& weight, int block, const Floats16 (&of_slabs)[R], int rows,
            Floats16* total) {
  const int first = block * kBlockOutputs;
  float scales[kBlockOutputs] = {};
  std::memcpy(scales, static_cast<const float*>(weight.scales) + first,
              std::min(kBlockOutputs, weight.outputs - first) * sizeof(float));
  const Floats16 factors = load_wide(scales);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < kParts; ++i)
      total[r].part[i] = of_slabs[r].part[i] * factors.part[i];
  }
}

// Scales and zero points of 4 bits, for 16 outputs from `place` on.
Floats16 scales4(const PackedLinear& weight, std::size_t place) {
  return load_wide(static_cast<const Float16Bits*>(weight.scales) + place);
}

Floats16 zeros4(const PackedLinear& weight, std::size_t place) {
  return weight.zeros == nullptr ? same(8) : load_wide(weight.zeros + place);
}

// Products of R rows with B blocks from `block` on, (B, R). Sums are in local variables: the
// compiler must assume that the bytes read alias the results.

template <int B, int R>
void multiply8(const PackedLinear& weight, int block, const Slabs<R>& x, Floats16 (*total)[R]) {
  const std::size_t block_bytes = weight.block_bytes();
  const std::uint8_t* data = weight.data + block * block_bytes;
  Floats16 zeros[B];
  for (int b = 0; b < B; ++b)
    zeros[b] = zeros8(weight, block + b);
  const Floats16 ones = same(1);
  Floats16 of_slabs[B][R] = {};
  for (int slab = 0; slab < x.slabs; ++slab, data += kSlabInputs * kBlockOutputs) {
    Sums sums[B][R];
    add_slab8<B, R>(data, block_bytes, x.rows(slab).data(), sums);
    for (int b = 0; b < B; ++b) {
      for (int r = 0; r < R; ++r) {
        add_scaled(of_slabs[b][r], sums[b][r], zeros[b], x.sum(r, slab), ones, x.scale(r, slab));
      }
    }
  }
  for (int b = 0; b < B; ++b)
    scale8(weight, block + b, of_slabs[b], R, total[b]);
}

template <int B, int R>
void multiply4(const PackedLinear& weight, int block, const Slabs<R>& x, Floats16 (*total)[R]) {
  const int groups = weight.groups();
  const std::size_t block_bytes = weight.block_bytes();
  const std::uint8_t* data = weight.data + block * block_bytes;
  Floats16 of_slabs[B][R] = {};
  // `part` selects the inputs of the sums: a whole slab, or one of its halves.
  const auto add = [&](int group, const Sums(&sums)[B][R], int slab, int part) {
    for (int b = 0; b < B; ++b) {
      const std::size_t place = (std::size_t(block + b) * groups + group) * kBlockOutputs;
      const Floats16 scales = scales4(weight, place), zeros = zeros4(weight, place);
      for (int r = 0; r < R; ++r) {
        add_scaled(of_slabs[b][r], sums[b][r], zeros, x.sums(r, slab)[part], scales,
                   x.scale(r, slab));
      }
    }
  };
  for (int slab = 0; slab < x.slabs; ++slab, data += kSlabInputs * kBlockOutputs / 2) {
    const int group = slab * kSlabInputs / weight.group;
    const auto of_row = x.rows(slab);
    if (weight.group != 32) {
      Sums both[B][R];
      add_whole_slab4<B, R>(data, block_bytes, of_row.data(), both);
      add(group, both, slab, 0);
      continue;
    }
    Sums low[B][R], high[B][R];
    if constexpr (kFillsRegisters<B, R>) {
      add_slab4<B, R>(data, block_bytes, of_row.data(), low, nullptr);
      add(group, low, slab, 1);
      add_slab4<B, R>(data, block_bytes, of_row.data(), nullptr, high);
    } else {
      add_slab4<B, R>(data, block_bytes, of_row.data(), low, high);
      add(group, low, slab, 1);
    }
    // Each half has a scale; the last slab may have only one group.
    add(std::min(group + 1, groups - 1), high, slab, 2);
  }
  for (int b = 0; b < B; ++b)
    std::copy(of_slabs[b], of_slabs[b] + R, total[b]);
}

template <typename T, int B, int R>
void multiply_floats(const PackedLinear& weight, int block, const Activations& x, int row,
                     Floats16 (*total)[R]) {
  const T* data[B];
  for (int b = 0; b < B; ++b)
    data[b] = reinterpret_cast<const T*>(weight.data + (block + b) * weight.block_bytes());
  const float* of_row[R];
  for (int r = 0; r < R; ++r)
    of_row[r] = x.values + (row + r) * x.stride;
  Floats16 sums[B][R] = {};
  for (int input = 0; input < weight.inputs; ++input) {
    Floats16 weights[B];
    for (int b = 0; b < B; ++b) {
      weights[b] = load_wide(data[b]);
      if constexpr (B * R <= kFewRows) fetch(data[b]);
      data[b] += kBlockOutputs;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int b = 0; b < B; ++b) {
#pragma GCC unroll 4
        for (int i = 0; i < kParts; ++i)
          sums[b][r].part[i] += weights[b].part[i] * of_row[r][input];
      }
    }
  }
  for (int b = 0; b < B; ++b)
    std::copy(sums[b], sums[b] + R, total[b]);
}

// Not inlined, as a tile of two blocks may have two.
template <int B, int R>
[[gnu::noinline]] void multiply(const PackedLinear& weight, int block, const Activations& x,
                                int row, Floats16 (*total)[R]) {
  const Slabs<R> slabs{x, row, weight.slabs()};
  switch (weight.kind) {
    case Kind::float32:
      return multiply_floats<float, B>(weight, block, x, row, total);
    case Kind::bfloat16:
      return multiply_floats<std::uint16_t, B>(weight, block, x, row, total);
    case Kind::float16:
      return multiply_floats<Float16Bits, B>(weight, block, x, row, total);
    case Kind::int8:
      return multiply8<B>(weight, block, slabs, total);
    case Kind::int4:
      return multiply4<B>(weight, block, slabs, total);
    default:
      if constexpr (kReadsPlanes && B == 1 && R <= kFewRows)
        multiply_blocks(weight, block, slabs, *total);
  }
}

void add_bias(Floats16& values, const float* bias, int count) {
  for (int i = 0; i < kParts; ++i) {
    values.part[i] += load_some(bias + i * kLanes, std::clamp(count - i * kLanes, 0, kLanes));
  }
}

// Operations after the product of a row with a block. `up` is the gated partner's, or null.
void finish_block(const PackedLinear& weight, int block, Floats16& total, Floats16* up, int row,
                  float* out_of_row, const Finish& finish) {
  const int count = std::min(kBlockOutputs, weight.outputs - block * kBlockOutputs);
  const int column = block * kBlockOutputs / (up == nullptr ? 1 : 2);
  if (finish.bias != nullptr) {
    add_bias(total, finish.bias + block * kBlockOutputs, count);
    if (up != nullptr) add_bias(*up, finish.bias + (block + 1) * kBlockOutputs, kBlockOutputs);
  }
  for (int i = 0; i < kParts && i * kLanes < count; ++i) {
    const int here = std::min(kLanes, count - i * kLanes);
    Floats value = activated(total.part[i], finish.activation);
    if (up != nullptr) value *= up->part[i];
    if (finish.soft_cap != 0) {
      value = finish.soft_cap * hyperbolic_tangent(value / finish.soft_cap);
    }
    value *= finish.factor;
    if (finish.residual != nullptr) {
      value +=
          load_some(finish.residual + row * finish.residual_stride + column + i * kLanes, here);
    }
    store_some(out_of_row + column + i * kLanes, value, here);
  }
}

// Of B blocks and R rows the first; two blocks of a gated linear are partners.
template <int B, int R>
void finish_rows(const PackedLinear& weight, int block, int blocks, Floats16 (&total)[B][R],
                 int row, int rows, float* out, std::size_t out_stride, const Finish& finish) {
  for (int r = 0; r < rows; ++r) {
    float* out_of_row = out + (row + r) * out_stride;
    if (finish.gated) {
      finish_block(weight, block, total[0][r], &total[B - 1][r], row + r, out_of_row, finish);
      continue;
    }
    for (int b = 0; b < blocks; ++b)
      finish_block(weight, block + b, total[b][r], nullptr, row + r, out_of_row, finish);
  }
}

// R rows of B blocks, kTogether blocks at a time.
template <int B, int kTogether, int R>
void tile(const PackedLinear& weight, const Activations& x, int row, float* out,
          std::size_t out_stride, int block, const Finish& finish) {
  Floats16 total[B][R];
  for (int b = 0; b < B; b += kTogether) {
    const PlacedBlock at = placed(weight, block + b);
    multiply<kTogether, R>(at.weight, at.block, x, row, total + b);
  }
  finish_rows(weight, block, B, total, row, R, out, out_stride, finish);
}

using Tile = void (*)(const PackedLinear&, const Activations&, int, float*, std::size_t, int,
                      const Finish&);

template <int B, int kTogether, int... R>
constexpr std::array<Tile, sizeof...(R)> make_tiles(std::integer_sequence<int, R...>) {
  return {tile<B, kTogether, R + 1>...};
}

// Row by row. With few rows, blocks are read from memory one after the other.
using Rows = std::make_integer_sequence<int, kMostRows>;
constexpr std::array kSingle = make_tiles<1, 1>(Rows());
constexpr std::array kFewRowsOfTwo = make_tiles<2, 1>(Rows());
constexpr std::array kRowsOfTwo = make_tiles<2, kMostBlocks>(Rows());

#if defined(__AVX512BF16__)

constexpr int kFewestForAmx = 8;  // fewer rows leave most of a register empty

bool suits_amx(const PackedLinear& weight) {
  return weight.kind == Kind::int8 || (weight.kind == Kind::int4 && weight.group != 32);
}

// As a tile, for up to kAmxRows rows; the sums come through memory. Slabs are added as they are
// there.
void amx_tile(const AmxProducts& amx, const PackedLinear& weight, const Activations& activations,
              int row, int rows, float* out, std::size_t out_stride, int block, int blocks,
              const Finish& finish) {
  const Slabs<1> x{activations, 0, weight.slabs()};
  const bool are_nibbles = weight.kind == Kind::int4;
  const int groups = are_nibbles ? weight.groups() : 0;
  const std::size_t block_bytes = weight.block_bytes();
  const std::uint8_t* data = weight.data + block * block_bytes;
  alignas(64) std::int32_t sums[kAmxBlocks][kAmxRows][kBlockOutputs];
  Floats16 of_slabs[kAmxBlocks][kAmxRows] = {}, zeros[kAmxBlocks], scales[kAmxBlocks];
  for (int b = 0; b < blocks && !are_nibbles; ++b) {
    zeros[b] = zeros8(weight, block + b);
    scales[b] = same(1);
  }
  amx.begin(rows);
  for (int slab = 0; slab < x.slabs; ++slab, data += block_bytes / x.slabs) {
    amx.slab(data, block_bytes, blocks, are_nibbles,
             activations.integers + x.place(row, slab) * kSlabInputs,
             std::size_t(x.slabs) * kSlabInputs, rows, &sums[0][0][0]);
    for (int b = 0; b < blocks; ++b) {
      if (are_nibbles) {
        const std::size_t group = slab * kSlabInputs / weight.group;
        const std::size_t place = (std::size_t(block + b) * groups + group) * kBlockOutputs;
        zeros[b] = zeros4(weight, place);
        scales[b] = scales4(weight, place);
      }
      for (int r = 0; r < rows; ++r) {
        add_scaled(of_slabs[b][r], {_mm512_load_si512(sums[b][r])}, zeros[b], x.sum(row + r, slab),
                   scales[b], x.scale(row + r, slab));
      }
    }
  }
  amx.end();
  for (int b = 0; b < blocks && !are_nibbles; ++b)
    scale8(weight, block + b, of_slabs[b], rows, of_slabs[b]);
  finish_rows(weight, block, blocks, of_slabs, row, rows, out, out_stride, finish);
}

#endif

// Prefetches share i of [from, end) into the L2 cache. Inlined like `fetch`.
[[gnu::always_inline]] inline void fetch_share(const std::uint8_t* from, const std::uint8_t* end,
                                               int i, int shares) {
  const std::size_t lines = (end - from + 63) / 64;
  const std::uint8_t* last = from + 64 * (lines * (i + 1) / shares);
  for (from += 64 * (lines * i / shares); from < last; from += 64)
    __builtin_prefetch(from, 0, 2);
}

// Many rows of ggml blocks: a piece of one or two blocks is unpacked and multiplied by all rows of
// a pass while the next is fetched.
void linear_of_blocks(const PackedLinear& weight, const Activations& x, int rows, float* out,
                      std::size_t out_stride, int first_block, int last_block,
                      const Finish& finish) {
  constexpr int kBlocks = 2;
  UnpackedSlab pieces[kBlocks][kPieceSlabs];
  Floats16 totals[kBlocks][kRowsOfPass];
  // Of nearly equal size, so that each is fetched in time. Blocks of 256 inputs are not split.
  const int all_slabs = weight.slabs(),
            count_of_pieces = (all_slabs + kPieceSlabs - 1) / kPieceSlabs;
  const int even = (all_slabs + count_of_pieces - 1) / count_of_pieces;
  const int of_piece = all_slabs % 4 == 0 ? (even + 3) / 4 * 4 : even;
  for (int start = 0; start < rows; start += kRowsOfPass) {
    const int count = std::min(rows - start, kRowsOfPass);
    for (int block = first_block; block < last_block; block += kBlocks) {
      const int blocks = std::min(kBlocks, last_block - block);
      // Blocks of two kinds are multiplied one by one.
      const bool are_alike =
          blocks == 2 && placed(weight, block).weight.kind == placed(weight, block + 1).weight.kind;
      const int together = are_alike ? kMostBlocks : 1;
      for (int b = 0; b < blocks; ++b)
        std::fill_n(totals[b], count, Floats16{});
      for (int slab = 0; slab < all_slabs; slab += of_piece) {
        const int slabs = std::min(of_piece, all_slabs - slab);
        const bool is_last = slab + of_piece >= all_slabs;
        const int next_block = is_last ? block + kBlocks : block;
        const int next_slab = is_last ? 0 : slab + of_piece;
        PieceBytes next[kBlocks];
        for (int b = 0; b < blocks; ++b) {
          const PlacedBlock at = placed(weight, block + b);
          unpack_piece(at.weight, at.block, slab, slabs, pieces[b]);
          if (next_block + b >= last_block) continue;
          const PlacedBlock then = placed(weight, next_block + b);
          next[b] = piece_bytes(then.weight, then.block, next_slab,
                                std::min(of_piece, all_slabs - next_slab));
        }
        for (int b = 0; b < blocks; b += together) {
          const BlockForm form = form_of(placed(weight, block + b).weight.kind);
          const auto& tiles = unpacked_tiles(form)[together - 1];
          const int shares = (count + kMostRows - 1) / kMostRows;
          for (int i = 0, row = 0; i < shares; ++i) {
            const int of_tile = (count - row) / (shares - i);  // of nearly equal size
            for (int one = b; one < std::min(b + together, blocks); ++one)
              fetch_share(next[one].begin, next[one].end, i, shares);
            tiles[of_tile - 1](pieces + b, slabs, x, start + row, slab, all_slabs, form.zero, row,
                               totals + b);
            row += of_tile;
          }
        }
      }
      for (int r = 0; r < count; ++r) {
        float* out_of_row = out + (start + r) * out_stride;
        if (finish.gated) {
          finish_block(weight, block, totals[0][r], &totals[1][r], start + r, out_of_row, finish);
          continue;
        }
        for (int b = 0; b < blocks; ++b)
          finish_block(weight, block + b, totals[b][r], nullptr, start + r, out_of_row, finish);
      }
    }
  }
}

void linear(const PackedLinear& weight, const Activations& x, int rows, float* out,
            std::size_t out_stride, int first_block, int last_block, const Finish& finish) {
  const bool are_of_blocks = is_of_blocks(weight.kind);
  if (are_of_blocks && !(kReadsPlanes && rows <= kRowsOfPlanes))
    return linear_of_blocks(weight, x, rows, out, out_stride, first_block, last_block, finish);
  const bool are_few = rows <= kFewRows || are_of_blocks;
  const int most_blocks = finish.gated ? 2 : are_few ? 1 : kMostBlocks;
#if defined(__AVX512BF16__)
  const AmxProducts* const amx = are_few || !suits_amx(weight) ? nullptr : amx_products();
#endif
  const std::size_t bytes = weight.block_bytes();
  for (int start = 0; start < rows; start += kRowsOfPass) {
    const int end = std::min(rows, start + kRowsOfPass);
    for (int block = first_block; block < last_block; block += most_blocks) {
      int row = start;
      const std::uint8_t* next = weight.data + std::min(block + most_blocks, last_block) * bytes;
      const std::uint8_t* next_end =
          weight.data + std::min(block + 2 * most_blocks, last_block) * bytes;
#if defined(__AVX512BF16__)
      while (amx != nullptr && end - row >= kFewestForAmx) {
        const int count = std::min(end - row, kAmxRows);
        amx_tile(*amx, weight, x, row, count, out, out_stride, block,
                 std::min(most_blocks, last_block - block), finish);
        row += count;
      }
#endif
      const bool is_single = most_blocks == 1 || last_block - block == 1;
      const auto& of_rows = is_single ? kSingle : are_few ? kFewRowsOfTwo : kRowsOfTwo;
      const int most_rows = are_few ? kFewRows : kMostRows;
      const int tiles = (end - row + most_rows - 1) / most_rows;
      for (int i = 0; i < tiles; ++i) {
        const int count = (end - row) / (tiles - i);  // of nearly equal size
        if (!are_few) fetch_share(next, next_end, i, tiles);
        of_rows[count - 1](weight, x, row, out, out_stride, block, finish);
        row += count;
      }
    }
  }
}

constexpr int kSlabParts = kSlabInputs / kLanes, kQuarters = 4;
constexpr std::int32_t kInfinityBits = 0x7F800000;  // as bits, sizes that are no numbers are larger

// Signed integers that fit into 8 bits.
void store_narrow(std::int8_t* to, Integers whole) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_cvtepi32_epi8(std::bit_cast<__m512i>(whole)));
#else
  using Signed = std::int8_t __attribute__((vector_size(kLanes)));
  const Signed narrow = __builtin_convertvector(whole, Signed);
  std::memcpy(to, &narrow, kLanes);
#endif
}

// One slab; returns its scale.
float quantize_slab(const float* x, std::int8_t* integers, float* sums) {
  Floats values[kSlabParts];
  Integers most = {};
#pragma GCC unroll 16
  for (int i = 0; i < kSlabParts; ++i) {
    values[i] = load(x + i * kLanes);
    const Integers size = std::bit_cast<Integers>(values[i]) & 0x7FFFFFFF;
    most = size > most ? size : most;
  }
  const auto top_bits =
      across<std::int32_t>(most, [](auto left, auto right) { return left > right ? left : right; });
  const float top = std::bit_cast<float>(top_bits);
  const bool is_empty = !(top > 1e-30F) || top_bits >= kInfinityBits;
  const float inverse = is_empty ? 0.0F : 127.0F / top;
  Integers totals[kQuarters] = {};
#pragma GCC unroll 16
  for (int i = 0; i < kSlabParts; ++i) {
    const Floats v = is_empty ? Floats{} : values[i] * inverse;
    const Floats shifted = v + 12582912.0F;  // rounds to the nearest whole number
    const Integers whole = std::bit_cast<Integers>(shifted) - std::int32_t{0x4B400000};
    totals[i / (kSlabParts / kQuarters)] += whole;
    store_narrow(integers + i * kLanes, whole);
  }
  for (int i = 0; i < kQuarters; ++i)
    sums[3 + i] = static_cast<float>(sum(totals[i]));
  sums[1] = sums[3] + sums[4];
  sums[2] = sums[5] + sums[6];
  sums[0] = sums[1] + sums[2];
  if (top_bits >= kInfinityBits) return std::numeric_limits<float>::quiet_NaN();
  return is_empty ? 0.0F : top / 127.0F;
}

void quantize(const float* x, int inputs, std::int8_t* integers, float* scales, float* sums) {
  for (int start = 0; start < inputs; start += kSlabInputs, sums += kSumsOfSlab) {
    if (inputs - start >= kSlabInputs) {
      *scales++ = quantize_slab(x + start, integers + start, sums);
    } else {
      float slab[kSlabInputs] = {};
      std::memcpy(slab, x + start, (inputs - start) * sizeof(float));
      *scales++ = quantize_slab(slab, integers + start, sums);
    }
  }
}

void embed(const PackedLinear& weight, std::int64_t entry, float factor, float* out) {
  if (is_of_blocks(weight.kind)) {
    const PlacedBlock at = placed(weight, static_cast<int>(entry / kBlockOutputs));
    read_block_row(at.weight.kind, at.weight.data,
                   std::int64_t{at.block} * kBlockOutputs + entry % kBlockOutputs, weight.inputs,
                   out);
    for (int input = 0; input < weight.inputs; ++input)
      out[input] *= factor;
    return;
  }
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
      default:
        break;
    }
    out[input] = value * factor;
  }
}

}  // namespace

extern const LinearKernels kLinearKernels;
const LinearKernels kLinearKernels = {NPU_SET_NAME, quantize, linear, embed};

}  // namespace npu::ops::kernel_programs::NPU_SET
