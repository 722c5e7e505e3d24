// Products of many rows of integers with packed weights by AMX, whose registers hold 16 rows of 64
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu::ops::kernel_programs {

inline constexpr int kAmxBlocks = 2;  // of 16 outputs each, which share the rows' inputs
inline constexpr int kAmxRows = 32;   // of which each of two registers holds 16

struct AmxProducts {
  // Readies the calling thread's registers for 1 to kAmxRows rows; `end` gives them back.
  void (*begin)(int rows);
  void (*end)();
  // The sums of a slab for `blocks` blocks, `block_bytes` apart: (kAmxBlocks, kAmxRows, 16),
  // written where there are blocks and rows. The weights are nibbles or bytes as packed_linear.h
  // has them; the rows' integers are `stride` bytes apart.
  void (*slab)(const std::uint8_t* weights, std::size_t block_bytes, int blocks, bool are_nibbles,
               const std::int8_t* x, std::size_t stride, int rows, std::int32_t* sums);
};

// Those of this processor; null if it has none, if the system withholds them, or if they were wrong
// when they were first asked to multiply something.
const AmxProducts* amx_products();

// The products themselves, which only a processor that has them can run.
extern const AmxProducts kAmxProducts;

// Whether they multiply as plain C++ does.
bool are_right(const AmxProducts& products);

}  // namespace npu::ops::kernel_programs
