// Slabs of ggml's block types (block_forms.h), and their products with rows, in the file's
// instruction set.
//
// For few rows, levels are read from their planes into registers. For many, a piece of a block is
// unpacked first, to a byte per level and float32 scales and minimums.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "kernel_programs/block_forms.h"
#include "kernel_programs/slab_products.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline constexpr int kSlabVectors = 16;  // of 16 outputs x 4 inputs

inline Integers load_integers(const std::uint8_t* from) {
  Integers vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// Entries of a table, as levels: 16 bytes for each four lanes of 32 bits.
template <Table kTable>
Integers looked_up(Integers indices) {
  static constexpr auto kEntries = [] {
    std::array<std::uint8_t, 64> entries{};
    for (int i = 0; i < 64; ++i)
      entries[i] = static_cast<std::uint8_t>(values_of(kTable)[i % 16] + kTableZero);
    return entries;
  }();
#if defined(__AVX512F__)
  return std::bit_cast<Integers>(
      _mm512_shuffle_epi8(_mm512_loadu_si512(kEntries.data()), std::bit_cast<__m512i>(indices)));
#elif defined(__AVX2__)
  return std::bit_cast<Integers>(
      _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(kEntries.data())),
                          std::bit_cast<__m256i>(indices)));
#else
  std::uint8_t bytes[sizeof indices];
  std::memcpy(bytes, &indices, sizeof bytes);
  for (std::uint8_t& byte : bytes)
    byte = kEntries[byte];
  std::memcpy(&indices, bytes, sizeof bytes);
  return indices;
#endif
}

// kBits of each byte of a plane's vector, from bit kFrom on, moved to bit kTo.
template <int kBits, int kFrom, int kTo>
Integers moved_bits(Integers vector) {
  constexpr auto kMask = static_cast<std::int32_t>(0x01010101U * (((1U << kBits) - 1) << kTo));
  using Unsigned = std::uint32_t __attribute__((vector_size(kLanes * 4)));
  if constexpr (kBits == 8) return vector;
  auto bits = std::bit_cast<Unsigned>(vector);
  if constexpr (kFrom > kTo) bits = bits >> (kFrom - kTo);
  if constexpr (kFrom < kTo) bits = bits << (kTo - kFrom);
  return std::bit_cast<Integers>(bits) & kMask;
}

// Vector number kNumber of a slab's levels, or one of its parts.
template <Kind kKind, int kNumber>
[[gnu::always_inline]] inline Integers levels_of(const std::uint8_t* slab, int part) {
  constexpr BlockForm kForm = form_of(kKind);
  constexpr int kLow = 2 * kForm.low_bits, kHigh = 2 * kForm.high_bits;
  slab += part * sizeof(Integers);
  Integers levels = moved_bits<kForm.low_bits, kNumber / kLow * kForm.low_bits, 0>(
      load_integers(slab + kNumber % kLow * 64));
  if constexpr (kHigh > 0) {
    levels |= moved_bits<kForm.high_bits, kNumber / kHigh * kForm.high_bits, kForm.low_bits>(
        load_integers(slab + kForm.low_bytes() + kNumber % kHigh * 64));
  }
  if constexpr (kForm.table != Table::none) levels = looked_up<kForm.table>(levels);
  return levels;
}

inline Floats16 operator*(const Floats16& left, const Floats16& right) {
  Floats16 product;
  for (int i = 0; i < kParts; ++i)
    product.part[i] = left.part[i] * right.part[i];
  return product;
}

// Integers of 16 outputs from their stored bits.
template <typename Change>
Floats16 to_floats(const std::uint8_t* from, const Change& change) {
  Floats16 wide;
  for (int i = 0; i < kParts; ++i) {
    wide.part[i] = __builtin_convertvector(change(widened(from + i * kLanes)), Floats);
  }
  return wide;
}

// The header of a record.
struct Header {
  Floats16 scale, minimum;
};

template <Kind kKind>
Header header_of(const std::uint8_t* record) {
  constexpr BlockForm kForm = form_of(kKind);
  Header header;
  if constexpr (kForm.has_header()) {
    header.scale = load_wide(reinterpret_cast<const Float16Bits*>(record));
    if constexpr (kForm.has_minimum)
      header.minimum = load_wide(reinterpret_cast<const Float16Bits*>(record + 32));
  }
  return header;
}

template <Kind kKind>
[[gnu::always_inline]] inline Floats16 scale_of(const std::uint8_t* slab, const Header& header,
                                                int group) {
  constexpr BlockForm kForm = form_of(kKind);
  const std::uint8_t* from = slab + kForm.plane_bytes() + kForm.scale_bytes() * group;
  if constexpr (kForm.scale == ScaleForm::half) {
    return load_wide(reinterpret_cast<const Float16Bits*>(from));
  } else if constexpr (kForm.scale == ScaleForm::exponent) {
    Floats16 wide;
    for (int i = 0; i < kParts; ++i) {
      const Integers bits = widened(from + i * kLanes);
      const Integers least = bits == 0 ? Integers{} + 0x00200000 : Integers{} + 0x00400000;
      wide.part[i] = std::bit_cast<Floats>(bits < 2 ? least : (bits - 1) << 23);
    }
    return wide;
  } else if constexpr (kForm.scale == ScaleForm::nibbles) {
    return header.scale * to_floats(from, [](Integers bits) { return bits & 15; });
  } else if constexpr (kForm.scale == ScaleForm::signed_bytes) {
    return header.scale * to_floats(from, [](Integers bits) { return bits << 24 >> 24; });
  } else {
    return header.scale * load_wide(from);
  }
}

template <Kind kKind>
[[gnu::always_inline]] inline Floats16 minimum_of(const std::uint8_t* slab, const Header& header,
                                                  int group) {
  constexpr BlockForm kForm = form_of(kKind);
  const std::uint8_t* from = slab + kForm.plane_bytes();
  if constexpr (kForm.scale == ScaleForm::half) {
    return load_wide(reinterpret_cast<const Float16Bits*>(from + kForm.scale_bytes() *
                                                                     (kForm.groups() + group)));
  } else if constexpr (kForm.scale == ScaleForm::nibbles) {
    return header.minimum *
           to_floats(from + kForm.scale_bytes() * group, [](Integers bits) { return bits >> 4; });
  } else {
    return header.minimum * load_wide(from + kForm.scale_bytes() * (kForm.groups() + group));
  }
}

// Levels that AVX2 products accept unchanged: two products fit into 16 bits.
constexpr bool are_small(const BlockForm& form) {
  return form.low_bits + form.high_bits <= 6 && form.table == Table::none;
}

#if defined(__AVX512VNNI__)

// Sums of products of four inputs with each output's levels. kTaken is the offset subtracted from
// levels.
template <bool kAreSmall>
inline constexpr int kTaken = 0;

template <bool kAreSmall>
Integers add_products(Integers sums, Integers levels, std::int32_t inputs) {
  return std::bit_cast<Integers>(_mm512_dpbusd_epi32(
      std::bit_cast<__m512i>(sums), std::bit_cast<__m512i>(levels), _mm512_set1_epi32(inputs)));
}

#elif defined(__AVXVNNI__)

template <bool kAreSmall>
inline constexpr int kTaken = 0;

template <bool kAreSmall>
Integers add_products(Integers sums, Integers levels, std::int32_t inputs) {
  return std::bit_cast<Integers>(_mm256_dpbusd_avx_epi32(
      std::bit_cast<__m256i>(sums), std::bit_cast<__m256i>(levels), _mm256_set1_epi32(inputs)));
}

#elif defined(__AVX2__)

template <bool kAreSmall>
inline constexpr int kTaken = kAreSmall ? 0 : kOffset8;

template <bool kAreSmall>
Integers add_products(Integers sums, Integers levels, std::int32_t inputs) {
  __m256i weights = std::bit_cast<__m256i>(levels), signed_inputs = _mm256_set1_epi32(inputs);
  if constexpr (!kAreSmall) {  // as in add_slab8
    weights = _mm256_xor_si256(weights, _mm256_set1_epi8(static_cast<char>(0x80)));
    signed_inputs = _mm256_sign_epi8(signed_inputs, weights);
    weights = _mm256_abs_epi8(weights);
  }
  const __m256i pairs = _mm256_maddubs_epi16(weights, signed_inputs);
  return sums + std::bit_cast<Integers>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#else

template <bool kAreSmall>
inline constexpr int kTaken = 0;

template <bool kAreSmall>
Integers add_products(Integers sums, Integers levels, std::int32_t inputs) {
  std::int8_t of_row[4];
  std::memcpy(of_row, &inputs, sizeof of_row);
  for (int i = 0; i < 4; ++i)
    sums += (levels >> (8 * i) & 255) * std::int32_t{of_row[i]};
  return sums;
}

#endif

// total += scale * (sums - zero * sum of x) * scale of x - minimum * sum of x * scale of x. Each
// line can be contracted in one way only and nothing branches at run time, so that all uses give
// the same. Numbers of a row are widened before they are multiplied: a load does it for nothing.
template <bool kHasZero>
void add_group(Floats& total, Integers sums, float zero, Floats scale, float sum_of_x,
               float scale_of_x) {
  Floats value = __builtin_convertvector(sums, Floats);
  if constexpr (kHasZero) value -= all(zero) * all(sum_of_x);
  total += value * (scale * scale_of_x);
}

inline void take_minimum(Floats& total, Floats minimum, float sum_of_x, float scale_of_x) {
  total -= minimum * (all(sum_of_x) * all(scale_of_x));
}

// The sum of a group's inputs, if a slab has this many groups.
template <int kGroups, int R>
float sum_of_group(const Slabs<R>& x, int r, int slab, int group) {
  return x.sums(r, slab)[(kGroups == 2 ? 1 : 3) + group];
}

// Products of rows with the levels of a group, or with a part of its outputs.
template <Kind kKind, int kGroup, int R, int... kNumbers>
[[gnu::always_inline]] inline void add_levels(const std::uint8_t* slab, int part,
                                              const std::int8_t* const* x, Integers (&sums)[R],
                                              std::integer_sequence<int, kNumbers...>) {
  constexpr bool kAreSmall = are_small(form_of(kKind));
  const auto add = [&]<int kNumber>() __attribute__((always_inline)) {
    const Integers levels = levels_of<kKind, kNumber>(slab, part);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      sums[r] = add_products<kAreSmall>(sums[r], levels, quad(x[r] + 4 * kNumber));
  };
  (add.template operator()<kGroup* int(sizeof...(kNumbers)) + kNumbers>(), ...);
}

template <Kind kKind, int R, int... kGroups>
[[gnu::always_inline]] inline void add_slab(const std::uint8_t* slab, const Header& header,
                                            const Slabs<R>& x, int number, Floats16 (&total)[R],
                                            std::integer_sequence<int, kGroups...>) {
  constexpr BlockForm kForm = form_of(kKind);
  constexpr float kZero = float(kForm.zero - kTaken<are_small(kForm)>);
  const auto of_row = x.rows(number);
  for (std::size_t byte = 0; byte < kForm.slab_bytes(); byte += 64)
    fetch(slab + byte);
  const auto add = [&]<int kGroup>() __attribute__((always_inline)) {
    const Floats16 scale = scale_of<kKind>(slab, header, kGroup);
    Floats16 minimum;
    if constexpr (kForm.has_minimum) minimum = minimum_of<kKind>(slab, header, kGroup);
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Integers sums[R] = {};
      add_levels<kKind, kGroup>(slab, part, of_row.data(), sums,
                                std::make_integer_sequence<int, kForm.group / 4>());
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const float sum_of_x = sum_of_group<kForm.groups()>(x, r, number, kGroup);
        const float scale_of_x = x.scale(r, number);
        add_group<kZero != 0>(total[r].part[part], sums[r], kZero, scale.part[part], sum_of_x,
                              scale_of_x);
        if constexpr (kForm.has_minimum)
          take_minimum(total[r].part[part], minimum.part[part], sum_of_x, scale_of_x);
      }
    }
  };
  (add.template operator()<kGroups>(), ...);
}

// Of a block and few rows.
template <Kind kKind, int R>
[[gnu::noinline]] void multiply_kind(const PackedLinear& weight, int block, const Slabs<R>& x,
                                     Floats16* total) {
  constexpr BlockForm kForm = form_of(kKind);
  const std::uint8_t* record = weight.data + block * weight.block_bytes();
  Floats16 sums[R] = {};
  for (int slab = 0; slab < x.slabs; record += kForm.record_bytes()) {
    const Header header = header_of<kKind>(record);
    const std::uint8_t* from = record + kForm.header_bytes();
    for (int i = 0; i < kForm.record_slabs(); ++i, ++slab, from += kForm.slab_bytes()) {
      add_slab<kKind>(from, header, x, slab, sums,
                      std::make_integer_sequence<int, kForm.groups()>());
    }
  }
  std::copy(sums, sums + R, total);
}

// Without wide vectors, all rows are multiplied by unpacked levels. With them, up to this many rows
// are processed in passes of kFewRows, since a second pass finds the planes in a near cache: 8 rows
// of Q8_0 take 0.68 of the time (Xeon with AVX512-VNNI, 2026-11-28).
inline constexpr bool kReadsPlanes = kLanes > 4;
inline constexpr int kRowsOfPlanes = 2 * kFewRows;

template <int R>
void multiply_blocks(const PackedLinear& weight, int block, const Slabs<R>& x, Floats16* total) {
  with_block_kind(weight.kind,
                  [&]<Kind kKind>() { multiply_kind<kKind>(weight, block, x, total); });
}

inline constexpr int kPieceSlabs = 8;  // two unpacked blocks stay in the L1 cache

struct UnpackedSlab {
  alignas(64) std::uint8_t levels[kSlabInputs * kBlockOutputs];
  Floats16 scales[4], minimums[4];
};

template <Kind kKind, int... kNumbers>
void unpack_slab(const std::uint8_t* slab, const Header& header, UnpackedSlab& to,
                 std::integer_sequence<int, kNumbers...>) {
  constexpr BlockForm kForm = form_of(kKind);
  for (int part = 0; part < kParts; ++part) {
    const auto store = [&]<int kNumber>() __attribute__((always_inline)) {
      const Integers levels = levels_of<kKind, kNumber>(slab, part);
      std::memcpy(to.levels + 64 * kNumber + part * sizeof levels, &levels, sizeof levels);
    };
    (store.template operator()<kNumbers>(), ...);
  }
  for (int group = 0; group < kForm.groups(); ++group) {
    to.scales[group] = scale_of<kKind>(slab, header, group);
    if constexpr (kForm.has_minimum) to.minimums[group] = minimum_of<kKind>(slab, header, group);
  }
}

// Unpacks slabs of a block, from the first of a record on.
inline void unpack_piece(const PackedLinear& weight, int block, int first_slab, int slabs,
                         UnpackedSlab* to) {
  with_block_kind(weight.kind, [&]<Kind kKind>() {
    constexpr BlockForm kForm = form_of(kKind);
    const std::uint8_t* record = weight.data + block * weight.block_bytes() +
                                 first_slab / kForm.record_slabs() * kForm.record_bytes();
    for (int slab = 0; slab < slabs; record += kForm.record_bytes()) {
      const Header header = header_of<kKind>(record);
      const std::uint8_t* from = record + kForm.header_bytes();
      for (int i = 0; i < kForm.record_slabs(); ++i, ++slab, from += kForm.slab_bytes())
        unpack_slab<kKind>(from, header, to[slab], std::make_integer_sequence<int, kSlabVectors>());
    }
  });
}

// The bytes of slabs of a block, from the first of a record on.
struct PieceBytes {
  const std::uint8_t *begin = nullptr, *end = nullptr;
};

inline PieceBytes piece_bytes(const PackedLinear& weight, int block, int first_slab, int slabs) {
  const BlockForm form = form_of(weight.kind);
  const int of_record = form.record_slabs();
  const std::uint8_t* begin =
      weight.data + block * weight.block_bytes() + first_slab / of_record * form.record_bytes();
  return {begin, begin + (slabs + of_record - 1) / of_record * form.record_bytes()};
}

inline constexpr int kMostRows = kLanes == 4 ? 4 : 6;  // sums fit in registers
inline constexpr int kRowsOfPass = 6 * kLanes;         // stay in a near cache from block to block

// Adds the products of R rows with a piece of B blocks to `totals` from column `place` on.
template <int kGroups, bool kHasMinimum, int B, int R>
void unpacked_tile(const UnpackedSlab (*pieces)[kPieceSlabs], int slabs, const Activations& rows,
                   int row, int first_slab, int all_slabs, int zero, int place,
                   Floats16 (*totals)[kRowsOfPass]) {
  constexpr int kOfGroup = kSlabVectors / kGroups;
  constexpr bool kHasZero = !kHasMinimum || kTaken<false> != 0;  // no type has both
  const Slabs<R> x{rows, row, all_slabs};
  const float zero_of_sums = static_cast<float>(zero - kTaken<false>);
  Floats16 total[B][R];
  for (int b = 0; b < B; ++b)
    std::copy(totals[b] + place, totals[b] + place + R, total[b]);
  for (int slab = 0; slab < slabs; ++slab) {
    const auto of_row = x.rows(first_slab + slab);
    for (int group = 0; group < kGroups; ++group) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        Integers sums[B][R] = {};
#pragma GCC unroll 8
        for (int i = 0; i < kOfGroup; ++i) {
          const int number = group * kOfGroup + i;
          Integers levels[B];
#pragma GCC unroll 2
          for (int b = 0; b < B; ++b) {
            levels[b] =
                load_integers(pieces[b][slab].levels + 64 * number + part * sizeof(Integers));
          }
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const std::int32_t inputs = quad(of_row[r] + 4 * number);
#pragma GCC unroll 2
            for (int b = 0; b < B; ++b)
              sums[b][r] = add_products<false>(sums[b][r], levels[b], inputs);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const float sum_of_x = sum_of_group<kGroups>(x, r, first_slab + slab, group);
          const float scale_of_x = x.scale(r, first_slab + slab);
#pragma GCC unroll 2
          for (int b = 0; b < B; ++b) {
            const UnpackedSlab& of_block = pieces[b][slab];
            Floats& to = total[b][r].part[part];
            add_group<kHasZero>(to, sums[b][r], zero_of_sums, of_block.scales[group].part[part],
                                sum_of_x, scale_of_x);
            if constexpr (kHasMinimum)
              take_minimum(to, of_block.minimums[group].part[part], sum_of_x, scale_of_x);
          }
        }
      }
    }
  }
  for (int b = 0; b < B; ++b)
    std::copy(total[b], total[b] + R, totals[b] + place);
}

using UnpackedTile = void (*)(const UnpackedSlab (*)[kPieceSlabs], int, const Activations&, int,
                              int, int, int, int, Floats16 (*)[kRowsOfPass]);
using UnpackedTiles = std::array<std::array<UnpackedTile, kMostRows>, kMostBlocks>;

template <int kGroups, bool kHasMinimum, int... R>
constexpr UnpackedTiles make_unpacked_tiles(std::integer_sequence<int, R...>) {
  UnpackedTiles tiles;
  tiles[0] = {unpacked_tile<kGroups, kHasMinimum, 1, R + 1>...};
  if constexpr (kMostBlocks > 1)
    tiles[kMostBlocks - 1] = {unpacked_tile<kGroups, kHasMinimum, kMostBlocks, R + 1>...};
  return tiles;
}

// Tiles by blocks and rows.
inline const UnpackedTiles& unpacked_tiles(const BlockForm& form) {
  using Rows = std::make_integer_sequence<int, kMostRows>;
  static constexpr UnpackedTiles kTwo = make_unpacked_tiles<2, false>(Rows()),
                                 kTwoWithMinimum = make_unpacked_tiles<2, true>(Rows()),
                                 kFour = make_unpacked_tiles<4, false>(Rows()),
                                 kFourWithMinimum = make_unpacked_tiles<4, true>(Rows());
  if (form.groups() == 2) return form.has_minimum ? kTwoWithMinimum : kTwo;
  return form.has_minimum ? kFourWithMinimum : kFour;
}

}  // namespace npu::ops::kernel_programs::NPU_SET
