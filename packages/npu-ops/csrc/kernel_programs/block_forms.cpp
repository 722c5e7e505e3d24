#include "kernel_programs/block_forms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace npu::ops::kernel_programs {
namespace {

constexpr int kMostInputs = 256, kMostGroups = 16;  // of a record

// A record's part of one output, in the file's format.
struct Values {
  std::uint8_t levels[kMostInputs];
  std::uint16_t halves[kMostGroups], minimum_halves[kMostGroups];
  std::uint8_t scales[kMostGroups], minimums[kMostGroups];
  std::uint16_t scale, minimum;  // of the header
};

std::uint16_t half_at(const std::uint8_t* from) {
  return static_cast<std::uint16_t>(from[0] | (from[1] << 8));
}

// Nibbles: the low ones are the first `count` levels, the high ones the next.
void nibbles(const std::uint8_t* from, int count, std::uint8_t* to) {
  for (int i = 0; i < count; ++i)
    to[i] = from[i] & 15;
  for (int i = 0; i < count; ++i)
    to[count + i] = from[i] >> 4;
}

// Some bits of `count` bytes, from bit `from_bit` on, added to levels from bit `to_bit` on.
void add_bits(const std::uint8_t* from, int count, int bits, int from_bit, int to_bit,
              std::uint8_t* to) {
  const int mask = (1 << bits) - 1;
  for (int i = 0; i < count; ++i)
    to[i] |= static_cast<std::uint8_t>((from[i] >> from_bit & mask) << to_bit);
}

// For each byte, its bits as the fifth ones of eight levels.
constexpr auto kFifthBits = [] {
  std::array<std::uint64_t, 256> levels{};
  for (int byte = 0; byte < 256; ++byte) {
    for (int i = 0; i < 8; ++i)
      levels[byte] |= std::uint64_t(byte >> i & 1) << (8 * i + 4);
  }
  return levels;
}();

// Adds a fifth bit to 32 levels of types with blocks of 32.
void add_fifth_bits(const std::uint8_t* from, std::uint8_t* to) {
  for (int i = 0; i < 4; ++i) {
    std::uint64_t eight;
    std::memcpy(&eight, to + 8 * i, sizeof eight);
    eight |= kFifthBits[from[i]];
    std::memcpy(to + 8 * i, &eight, sizeof eight);
  }
}

// The 8 scales and 8 minimums of 6 bits of Q4_K and Q5_K.
void six_bits(const std::uint8_t* from, Values& to) {
  for (int i = 0; i < 4; ++i) {
    to.scales[i] = from[i] & 63;
    to.minimums[i] = from[4 + i] & 63;
    to.scales[4 + i] = static_cast<std::uint8_t>((from[8 + i] & 15) | (from[i] >> 6 << 4));
    to.minimums[4 + i] = static_cast<std::uint8_t>((from[8 + i] >> 4) | (from[4 + i] >> 6 << 4));
  }
}

// Block number `place` of a record in a file.
template <Kind kKind>
void decode(const std::uint8_t* from, int place, Values& to) {
  constexpr int kSign = 0x8000;
  std::uint8_t* levels = to.levels + 32 * place;
  if constexpr (kKind == Kind::q4_0 || kKind == Kind::iq4_nl) {
    to.halves[place] = half_at(from);
    nibbles(from + 2, 16, levels);
  } else if constexpr (kKind == Kind::q4_1 || kKind == Kind::q5_1) {
    to.halves[place] = half_at(from);
    to.minimum_halves[place] = half_at(from + 2) ^ kSign;
    nibbles(from + (kKind == Kind::q5_1 ? 8 : 4), 16, levels);
    if constexpr (kKind == Kind::q5_1) add_fifth_bits(from + 4, levels);
  } else if constexpr (kKind == Kind::q5_0) {
    to.halves[place] = half_at(from);
    nibbles(from + 6, 16, levels);
    add_fifth_bits(from + 2, levels);
  } else if constexpr (kKind == Kind::q8_0) {
    to.halves[place] = half_at(from);
    for (int i = 0; i < 32; ++i)
      levels[i] = from[2 + i] ^ 0x80;
  } else if constexpr (kKind == Kind::mxfp4) {
    to.scales[place] = from[0];
    nibbles(from + 1, 16, levels);
  } else if constexpr (kKind == Kind::q2_k) {
    std::memcpy(to.scales, from, 16);
    std::memset(levels, 0, 256);
    for (int i = 0; i < 8; ++i)
      add_bits(from + 16 + i / 4 * 32, 32, 2, i % 4 * 2, 0, levels + 32 * i);
    to.scale = half_at(from + 80);
    to.minimum = half_at(from + 82);
  } else if constexpr (kKind == Kind::q3_k) {
    std::memset(levels, 0, 256);
    for (int i = 0; i < 8; ++i) {
      add_bits(from + 32 + i / 4 * 32, 32, 2, i % 4 * 2, 0, levels + 32 * i);
      add_bits(from, 32, 1, i, 2, levels + 32 * i);
    }
    for (int i = 0; i < 16; ++i) {
      const int low = from[96 + i % 8] >> (i / 8 * 4) & 15;
      const int high = from[104 + i % 4] >> (i / 4 * 2) & 3;
      to.scales[i] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
    }
    to.scale = half_at(from + 108);
  } else if constexpr (kKind == Kind::q4_k || kKind == Kind::q5_k) {
    to.scale = half_at(from);
    to.minimum = half_at(from + 2);
    six_bits(from + 4, to);
    const std::uint8_t* low = from + (kKind == Kind::q5_k ? 48 : 16);
    for (int i = 0; i < 4; ++i)
      nibbles(low + 32 * i, 32, levels + 64 * i);
    if constexpr (kKind == Kind::q5_k) {
      for (int i = 0; i < 8; ++i)
        add_bits(from + 16, 32, 1, i, 4, levels + 32 * i);
    }
  } else if constexpr (kKind == Kind::q6_k) {
    for (int i = 0; i < 2; ++i)
      nibbles(from + 64 * i, 64, levels + 128 * i);
    for (int i = 0; i < 8; ++i)
      add_bits(from + 128 + i / 4 * 32, 32, 2, i % 4 * 2, 4, levels + 32 * i);
    std::memcpy(to.scales, from + 192, 16);
    to.scale = half_at(from + 208);
  } else {
    static_assert(kKind == Kind::iq4_xs);
    to.scale = half_at(from);
    for (int i = 0; i < 8; ++i) {
      const int low = from[4 + i / 2] >> (i % 2 * 4) & 15;
      const int high = half_at(from + 2) >> (2 * i) & 3;
      to.scales[i] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
      nibbles(from + 8 + 16 * i, 16, levels + 32 * i);
    }
  }
}

bool is_finite(std::uint16_t half) {
  return (half & 0x7C00) != 0x7C00;
}

// The maximum of E2M1 would be infinite beyond it.
constexpr int kMostExponent = 252;

template <Kind kKind>
bool are_finite(const Values& values, int blocks) {
  constexpr BlockForm kForm = form_of(kKind);
  if constexpr (kForm.has_header()) {
    return is_finite(values.scale) && (!kForm.has_minimum || is_finite(values.minimum));
  }
  bool result = true;
  for (int i = 0; i < blocks; ++i) {
    if constexpr (kForm.scale == ScaleForm::exponent) {
      result = result && values.scales[i] <= kMostExponent;
    } else {
      result = result && is_finite(values.halves[i]) &&
               (!kForm.has_minimum || is_finite(values.minimum_halves[i]));
    }
  }
  return result;
}

// Moves some bits of a vector of levels to their plane.
void write_bits(const std::uint32_t* levels, int bits, int from, int number, std::uint8_t* plane) {
  const int vectors = 2 * bits, shift = bits * (number / vectors);
  const std::uint32_t mask = 0x01010101U * ((1U << bits) - 1);
  std::uint8_t* to = plane + number % vectors * 64;
  std::uint32_t there[kBlockOutputs];
  std::memcpy(there, to, sizeof there);
  for (int output = 0; output < kBlockOutputs; ++output)
    there[output] |= (levels[output] >> from & mask) << shift;
  std::memcpy(to, there, sizeof there);
}

template <Kind kKind>
void write_slab(const Values* values, int slab, std::uint8_t* to) {
  constexpr BlockForm kForm = form_of(kKind);
  for (int number = 0; number < 16; ++number) {
    std::uint32_t levels[kBlockOutputs];
    for (int output = 0; output < kBlockOutputs; ++output)
      std::memcpy(levels + output, values[output].levels + kSlabInputs * slab + 4 * number, 4);
    write_bits(levels, kForm.low_bits, 0, number, to);
    if constexpr (kForm.high_bits > 0) {
      write_bits(levels, kForm.high_bits, kForm.low_bits, number, to + kForm.low_bytes());
    }
  }
  to += kForm.plane_bytes();
  const auto write = [&](const auto& of_group) {
    for (int group = 0; group < kForm.groups(); ++group) {
      for (int output = 0; output < kBlockOutputs; ++output) {
        const auto value = of_group(values[output], slab * kForm.groups() + group);
        std::memcpy(to, &value, sizeof value);
        to += sizeof value;
      }
    }
  };
  if constexpr (kForm.scale == ScaleForm::half) {
    write([](const Values& one, int group) { return one.halves[group]; });
    if constexpr (kForm.has_minimum)
      write([](const Values& one, int group) { return one.minimum_halves[group]; });
  } else {
    write([](const Values& one, int group) { return one.scales[group]; });
    if constexpr (kForm.has_minimum && kForm.scale == ScaleForm::bytes)
      write([](const Values& one, int group) { return one.minimums[group]; });
  }
}

template <Kind kKind>
bool pack_rows(const std::uint8_t* file, int rows, int inputs, const std::int64_t* order,
               int first_block, int last_block, std::uint8_t* data) {
  constexpr BlockForm kForm = form_of(kKind);
  constexpr int kOfRecord = kForm.record_slabs() * kSlabInputs / kForm.file_inputs;
  const int of_row = inputs / kForm.file_inputs;
  const std::size_t row_bytes = std::size_t(of_row) * kForm.file_bytes;
  bool result = true;
  std::uint8_t* to = data + first_block * kForm.block_bytes(inputs);
  for (int block = first_block; block < last_block; ++block) {
    for (int first = 0; first < of_row; first += kOfRecord, to += kForm.record_bytes()) {
      Values values[kBlockOutputs];
      const int count = std::min(kOfRecord, of_row - first);
      for (int output = 0; output < kBlockOutputs; ++output) {
        const int row = block * kBlockOutputs + output;
        if (count < kOfRecord || row >= rows) values[output] = {};
        if (row >= rows) continue;
        const std::int64_t of_file = order == nullptr ? row : order[row];
        const std::uint8_t* from = file + of_file * row_bytes + first * kForm.file_bytes;
        for (int i = 0; i < count; ++i)
          decode<kKind>(from + i * kForm.file_bytes, i, values[output]);
        result = are_finite<kKind>(values[output], count) && result;
      }
      std::memset(to, 0, kForm.record_bytes());
      if constexpr (kForm.has_header()) {
        for (int output = 0; output < kBlockOutputs; ++output) {
          std::memcpy(to + 2 * output, &values[output].scale, 2);
          if constexpr (kForm.has_minimum)
            std::memcpy(to + 32 + 2 * output, &values[output].minimum, 2);
        }
      }
      for (int slab = 0; slab < kForm.record_slabs(); ++slab)
        write_slab<kKind>(values, slab, to + kForm.header_bytes() + slab * kForm.slab_bytes());
    }
  }
  return result;
}

float half_to_float(const std::uint8_t* from) {
  const std::uint32_t half = half_at(from), sign = (half & 0x8000) << 16, rest = half & 0x7FFF;
  const float value = std::bit_cast<float>(rest << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

float power_of_two(std::uint8_t exponent) {
  return std::bit_cast<float>(exponent < 2 ? 0x00200000U << exponent : (exponent - 1U) << 23);
}

template <Kind kKind>
void read_row(const std::uint8_t* data, std::int64_t output, int inputs, float* out) {
  constexpr BlockForm kForm = form_of(kKind);
  const int lane = static_cast<int>(output % kBlockOutputs);
  const std::uint8_t* record = data + output / kBlockOutputs * kForm.block_bytes(inputs);
  for (int slab = 0; slab * kSlabInputs < inputs; ++slab) {
    const int of_record = slab % kForm.record_slabs();
    if (slab > 0 && of_record == 0) record += kForm.record_bytes();
    const std::uint8_t* from = record + kForm.header_bytes() + of_record * kForm.slab_bytes();
    std::uint8_t levels[kSlabInputs] = {};
    const auto read_bits = [&](int bits, int shift, const std::uint8_t* plane) {
      for (int i = 0; i < kSlabInputs; ++i) {
        const int vectors = 2 * bits, number = i / 4;
        const int byte = plane[number % vectors * 64 + 4 * lane + i % 4];
        const int level = byte >> (number / vectors * bits) & ((1 << bits) - 1);
        levels[i] |= static_cast<std::uint8_t>(level << shift);
      }
    };
    read_bits(kForm.low_bits, 0, from);
    if constexpr (kForm.high_bits > 0)
      read_bits(kForm.high_bits, kForm.low_bits, from + kForm.low_bytes());
    const std::uint8_t* scales = from + kForm.plane_bytes();
    for (int group = 0; group < kForm.groups(); ++group) {
      const int place = group * kBlockOutputs + lane;
      const std::uint8_t *low = scales + place, *second = low + kForm.groups() * kBlockOutputs;
      float scale = 0, minimum = 0;
      if constexpr (kForm.scale == ScaleForm::half) {
        scale = half_to_float(scales + 2 * place);
        if constexpr (kForm.has_minimum)
          minimum = half_to_float(scales + 2 * (kForm.groups() * kBlockOutputs + place));
      } else if constexpr (kForm.scale == ScaleForm::exponent) {
        scale = power_of_two(*low);
      } else {
        const float of_scales = half_to_float(record + 2 * lane);
        const bool are_nibbles = kForm.scale == ScaleForm::nibbles;
        const int whole = kForm.scale == ScaleForm::signed_bytes ? static_cast<std::int8_t>(*low)
                                                                 : *low & (are_nibbles ? 15 : 255);
        scale = of_scales * static_cast<float>(whole);
        if constexpr (kForm.has_minimum) {
          minimum = half_to_float(record + 32 + 2 * lane) *
                    static_cast<float>(are_nibbles ? *low >> 4 : *second);
        }
      }
      const int first = slab * kSlabInputs + group * kForm.group;
      for (int i = 0; i < kForm.group && first + i < inputs; ++i) {
        const int level = levels[group * kForm.group + i];
        int value = level - kForm.zero;
        if constexpr (kForm.table != Table::none) value = values_of(kForm.table)[level];
        out[first + i] = scale * static_cast<float>(value);
        if constexpr (kForm.has_minimum) out[first + i] -= minimum;
      }
    }
  }
}

}  // namespace

bool pack_block_rows(Kind kind, const std::uint8_t* file, int rows, int inputs,
                     const std::int64_t* order, int first_block, int last_block,
                     std::uint8_t* data) {
  return with_block_kind(kind, [&]<Kind kKind>() {
    return pack_rows<kKind>(file, rows, inputs, order, first_block, last_block, data);
  });
}

void read_block_row(Kind kind, const std::uint8_t* data, std::int64_t output, int inputs,
                    float* out) {
  with_block_kind(kind, [&]<Kind kKind>() { read_row<kKind>(data, output, inputs, out); });
}

}  // namespace npu::ops::kernel_programs
