// Weights in the blocks of ggml's quantized types, rearranged without loss for the kernels.
//
// A weight is scale * (level - zero) - minimum. `zero` is the type's; scale and minimum are those
// of a group of 16 or 32 inputs. Types with blocks of 256 inputs have small whole numbers for them,
// times a float16 of the block.
//
// A block of 16 outputs is a list of records of one slab, or of four for blocks of 256 inputs:
//   - header, for blocks of 256 inputs: a float16 for each output that multiplies scales, and
//     another that multiplies minimums.
//   - for each slab of 64 inputs: the levels' low bits, their high bits, scales, minimums.
// Bits are in planes: a plane of n bits has 2 * n vectors of 64 bytes. Of the 16 vectors of levels
// of a slab, each 16 outputs x 4 inputs, number p is in vector p % (2 * n), from bit n * (p / (2 *
// n)) on. Scales and minimums: 16 outputs for each group.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu::ops::kernel_programs {

inline constexpr int kBlockOutputs = 16;
inline constexpr int kSlabInputs = 64;

enum class Kind {
  float32,
  bfloat16,
  float16,
  int8,
  int4,
  // Blocks of ggml's types:
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  mixed,  // parts with several of these
};

constexpr bool is_of_blocks(Kind kind) {
  return kind >= Kind::q4_0;
}

enum class ScaleForm {
  half,      // float16 for each group
  exponent,  // a power of two: MXFP4's byte
  bytes,     // unsigned bytes, times the header's
  signed_bytes,
  nibbles,  // low nibbles scales, high ones minimums
};

enum class Table { none, iq4, e2m1 };

struct BlockForm {
  int file_inputs, file_bytes;  // of a block in a file
  int low_bits, high_bits;      // of a level
  int group;                    // inputs that share a scale
  int zero;                     // of levels; of a table's entries kTableZero
  ScaleForm scale;
  bool has_minimum;
  Table table;  // values of levels in a table; none: the level itself

  constexpr int groups() const { return kSlabInputs / group; }
  constexpr bool has_header() const {
    return scale != ScaleForm::half && scale != ScaleForm::exponent;
  }
  constexpr std::size_t scale_bytes() const { return scale == ScaleForm::half ? 32 : 16; }
  constexpr std::size_t low_bytes() const { return std::size_t(128) * low_bits; }
  constexpr std::size_t plane_bytes() const { return std::size_t(128) * (low_bits + high_bits); }
  constexpr std::size_t slab_bytes() const {
    const bool has_own = has_minimum && scale != ScaleForm::nibbles;
    return plane_bytes() + scale_bytes() * groups() * (has_own ? 2 : 1);
  }
  constexpr int record_slabs() const { return has_header() ? 4 : 1; }
  constexpr std::size_t header_bytes() const { return has_header() ? (has_minimum ? 64 : 32) : 0; }
  constexpr std::size_t record_bytes() const {
    return header_bytes() + record_slabs() * slab_bytes();
  }
  constexpr std::size_t block_bytes(int inputs) const {
    const int of_record = record_slabs() * kSlabInputs;
    return std::size_t((inputs + of_record - 1) / of_record) * record_bytes();
  }
};

// Offset of a table's entries, as levels are unsigned.
inline constexpr int kTableZero = 128;
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t kE2m1Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12};

constexpr const std::int8_t* values_of(Table table) {
  return table == Table::iq4 ? kIq4Values : table == Table::e2m1 ? kE2m1Values : nullptr;
}

// Undefined for other kinds.
constexpr BlockForm form_of(Kind kind) {
  using enum ScaleForm;
  switch (kind) {
    case Kind::q4_0:
      return {32, 18, 4, 0, 32, 8, half, false, Table::none};
    case Kind::q4_1:
      return {32, 20, 4, 0, 32, 0, half, true, Table::none};
    case Kind::q5_0:
      return {32, 22, 4, 1, 32, 16, half, false, Table::none};
    case Kind::q5_1:
      return {32, 24, 4, 1, 32, 0, half, true, Table::none};
    case Kind::q8_0:
      return {32, 34, 8, 0, 32, 128, half, false, Table::none};
    case Kind::q2_k:
      return {256, 84, 2, 0, 16, 0, nibbles, true, Table::none};
    case Kind::q3_k:
      return {256, 110, 2, 1, 16, 4, signed_bytes, false, Table::none};
    case Kind::q4_k:
      return {256, 144, 4, 0, 32, 0, bytes, true, Table::none};
    case Kind::q5_k:
      return {256, 176, 4, 1, 32, 0, bytes, true, Table::none};
    case Kind::q6_k:
      return {256, 210, 4, 2, 16, 32, signed_bytes, false, Table::none};
    case Kind::iq4_nl:
      return {32, 18, 4, 0, 32, kTableZero, half, false, Table::iq4};
    case Kind::iq4_xs:
      return {256, 136, 4, 0, 32, kTableZero, signed_bytes, false, Table::iq4};
    case Kind::mxfp4:
      return {32, 17, 4, 0, 32, kTableZero, exponent, false, Table::e2m1};
    default:
      return {};
  }
}

// Calls `work` with the kind as a template argument.
template <typename Work>
decltype(auto) with_block_kind(Kind kind, const Work& work) {
  switch (kind) {
    case Kind::q4_0:
      return work.template operator()<Kind::q4_0>();
    case Kind::q4_1:
      return work.template operator()<Kind::q4_1>();
    case Kind::q5_0:
      return work.template operator()<Kind::q5_0>();
    case Kind::q5_1:
      return work.template operator()<Kind::q5_1>();
    case Kind::q8_0:
      return work.template operator()<Kind::q8_0>();
    case Kind::q2_k:
      return work.template operator()<Kind::q2_k>();
    case Kind::q3_k:
      return work.template operator()<Kind::q3_k>();
    case Kind::q4_k:
      return work.template operator()<Kind::q4_k>();
    case Kind::q5_k:
      return work.template operator()<Kind::q5_k>();
    case Kind::q6_k:
      return work.template operator()<Kind::q6_k>();
    case Kind::iq4_nl:
      return work.template operator()<Kind::iq4_nl>();
    case Kind::iq4_xs:
      return work.template operator()<Kind::iq4_xs>();
    default:
      return work.template operator()<Kind::mxfp4>();
  }
}

// Packs blocks of 16 outputs, [first_block, last_block), of a matrix of `rows` rows.
//   file: the rows, one after the other, in the file's blocks.
//   order: which row of the file each output is, or null for their own order.
// Returns false if a scale or minimum is infinite or NaN.
bool pack_block_rows(Kind kind, const std::uint8_t* file, int rows, int inputs,
                     const std::int64_t* order, int first_block, int last_block,
                     std::uint8_t* data);

// One output's weights: (inputs,), as gguf dequantizes it.
void read_block_row(Kind kind, const std::uint8_t* data, std::int64_t output, int inputs,
                    float* out);

}  // namespace npu::ops::kernel_programs
