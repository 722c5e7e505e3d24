// Products of many rows of integers with packed weights by AMX; its registers hold 16 rows of 64
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu::ops::kernel_programs {

inline constexpr int kAmxBlocks = 2;  // of 16 outputs each, with the same inputs
inline constexpr int kAmxRows = 32;   // 16 per register, in two registers

struct AmxProducts {
  // Configures the calling thread's tile registers for 1 to kAmxRows rows; `end` releases them.
  void (*begin)(int rows);
  void (*end)();
  // The sums of a slab for `blocks` blocks, `block_bytes` apart: (kAmxBlocks, kAmxRows, 16),
  // written where there are blocks and rows. The weights are nibbles or bytes as packed_linear.h
  // has them; the rows' integers are `stride` bytes apart.
  void (*slab)(const std::uint8_t* weights, std::size_t block_bytes, int blocks, bool are_nibbles,
               const std::int8_t* x, std::size_t stride, int rows, std::int32_t* sums);
};

// This processor's functions; null if it has no AMX, if the system denies it, or if a first test
// product was wrong.
const AmxProducts* amx_products();

// The products, which require AMX.
extern const AmxProducts kAmxProducts;

// Whether they agree with plain C++.
bool are_right(const AmxProducts& products);

}  // namespace npu::ops::kernel_programs
