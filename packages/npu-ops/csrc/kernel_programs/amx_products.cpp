// Compiled for AVX512: a processor with AMX supports all instructions used here.
#include "kernel_programs/amx_products.h"

#include <immintrin.h>

#include <algorithm>
#include <iterator>

#include "kernel_programs/packed_linear.h"

namespace npu::ops::kernel_programs {
namespace {

constexpr int kRowsOfRegister = 16, kBytesOfRow = 64;
constexpr int kSumsOfRegister = kRowsOfRegister * kBlockOutputs;

// Operand of the instruction that sets the tile shapes.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

// Tile registers: 0 to 3 are sums, those of a block next to each other; 4 and 5 rows; 6 and 7
// weights.
void begin(int rows) {
  Shapes shapes;
  const auto set = [&](int number, int count) {
    if (count <= 0) return;
    shapes.rows[number] = static_cast<std::uint8_t>(count);
    shapes.row_bytes[number] = kBytesOfRow;
  };
  for (int half = 0; half < 2; ++half) {
    const int count = std::min(rows - half * kRowsOfRegister, kRowsOfRegister);
    set(half, count);
    set(2 + half, count);
    set(4 + half, count);
    set(6 + half, kRowsOfRegister);
  }
  _tile_loadconfig(&shapes);
}

void end() {
  _tile_release();
}

// The low nibbles are the first half of a slab's inputs, the high ones the second.
void unpack(const std::uint8_t* nibbles, std::uint8_t* to) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int i = 0; i < kRowsOfRegister / 2; ++i) {
    const __m512i both = _mm512_loadu_si512(nibbles + kBytesOfRow * i);
    _mm512_store_si512(to + kBytesOfRow * i, _mm512_and_si512(both, low));
    _mm512_store_si512(to + kBytesOfRow * (i + kRowsOfRegister / 2),
                       _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

void slab(const std::uint8_t* weights, std::size_t block_bytes, int blocks, bool are_nibbles,
          const std::int8_t* x, std::size_t stride, int rows, std::int32_t* sums) {
  alignas(64) std::uint8_t unpacked[kAmxBlocks][kSlabInputs * kBlockOutputs];
  const std::uint8_t* of_block[kAmxBlocks] = {weights, weights + block_bytes};
  for (int block = 0; are_nibbles && block < blocks; ++block) {
    unpack(of_block[block], unpacked[block]);
    of_block[block] = unpacked[block];
  }
  const bool has_two = blocks == 2, has_more_rows = rows > kRowsOfRegister;
  std::int32_t* next = sums + kAmxRows * kBlockOutputs;
  _tile_loadd(4, x, stride);
  _tile_loadd(6, of_block[0], kBytesOfRow);
  _tile_zero(0);
  _tile_dpbsud(0, 4, 6);
  _tile_stored(0, sums, kBytesOfRow);
  if (has_more_rows) {
    _tile_loadd(5, x + kRowsOfRegister * stride, stride);
    _tile_zero(1);
    _tile_dpbsud(1, 5, 6);
    _tile_stored(1, sums + kSumsOfRegister, kBytesOfRow);
  }
  if (!has_two) return;
  _tile_loadd(7, of_block[1], kBytesOfRow);
  _tile_zero(2);
  _tile_dpbsud(2, 4, 7);
  _tile_stored(2, next, kBytesOfRow);
  if (has_more_rows) {
    _tile_zero(3);
    _tile_dpbsud(3, 5, 7);
    _tile_stored(3, next + kSumsOfRegister, kBytesOfRow);
  }
}

}  // namespace

const AmxProducts kAmxProducts = {begin, end, slab};

bool are_right(const AmxProducts& products) {
  constexpr int kSlabs = 2, kSlabBytes = kSlabInputs * kBlockOutputs;
  constexpr std::size_t kStride = kSlabs * kSlabInputs;
  std::uint8_t weights[kAmxBlocks * kSlabs * kSlabBytes];
  std::int8_t x[kAmxRows * kStride];
  std::uint32_t state = 1;
  const auto next = [&] { return (state = state * 1664525 + 1013904223) >> 24; };
  std::generate(std::begin(weights), std::end(weights), next);
  std::generate(std::begin(x), std::end(x), next);
  std::int32_t sums[kAmxBlocks][kAmxRows][kBlockOutputs];
  for (const int rows : {1, 16, 21, kAmxRows}) {
    for (const bool are_nibbles : {false, true}) {
      const std::size_t slab_bytes = are_nibbles ? kSlabBytes / 2 : kSlabBytes;
      products.begin(rows);
      products.slab(weights + slab_bytes, kSlabs * slab_bytes, kAmxBlocks, are_nibbles,
                    x + kSlabInputs, kStride, rows, &sums[0][0][0]);
      products.end();
      for (int block = 0; block < kAmxBlocks; ++block) {
        const std::uint8_t* data = weights + (block * kSlabs + 1) * slab_bytes;
        for (int row = 0; row < rows; ++row) {
          for (int output = 0; output < kBlockOutputs; ++output) {
            std::int32_t sum = 0;
            for (int input = 0; input < kSlabInputs; ++input) {
              const int half = are_nibbles ? input / 32 : 0, place = input - 32 * half;
              const int byte = data[place / 4 * kBytesOfRow + output * 4 + place % 4];
              const int weight = are_nibbles ? byte >> (4 * half) & 15 : byte;
              sum += weight * x[row * kStride + kSlabInputs + input];
            }
            if (sums[block][row][output] != sum) return false;
          }
        }
      }
    }
  }
  return true;
}

}  // namespace npu::ops::kernel_programs
