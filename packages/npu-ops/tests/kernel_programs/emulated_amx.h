// AMX's registers and instructions in plain C++, in place of the compiler's, for processors
// without.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

struct EmulatedAmx {
  std::uint8_t shapes[64] = {};
  std::uint8_t registers[8][16][64] = {};

  int rows(int number) const { return shapes[48 + number]; }
  int row_bytes(int number) const {
    return shapes[16 + 2 * number] + 256 * shapes[17 + 2 * number];
  }
  void check(int number) const {  // the processor ends a process that uses what has no shape
    if (shapes[0] == 1 && rows(number) > 0 && row_bytes(number) > 0) return;
    std::puts("a register without a shape was used");
    std::exit(1);
  }
  void zero(int number) {
    check(number);
    std::memset(registers[number], 0, sizeof registers[number]);
  }
  void load(int number, const void* from, std::size_t stride) {
    zero(number);
    for (int row = 0; row < rows(number); ++row)
      std::memcpy(registers[number][row], static_cast<const char*>(from) + row * stride,
                  row_bytes(number));
  }
  void store(int number, void* to, std::size_t stride) const {
    check(number);
    for (int row = 0; row < rows(number); ++row)
      std::memcpy(static_cast<char*>(to) + row * stride, registers[number][row], row_bytes(number));
  }
  // Sums of 4 products each: signed bytes of the rows, unsigned bytes of the weights.
  void multiply(int to, int left, int right) {
    check(to), check(left), check(right);
    for (int row = 0; row < rows(to); ++row) {
      for (int output = 0; output < row_bytes(to) / 4; ++output) {
        std::int32_t sum;
        std::memcpy(&sum, registers[to][row] + 4 * output, 4);
        for (int k = 0; k < row_bytes(left); ++k) {
          sum += static_cast<std::int8_t>(registers[left][row][k]) *
                 registers[right][k / 4][4 * output + k % 4];
        }
        std::memcpy(registers[to][row] + 4 * output, &sum, 4);
      }
    }
  }
};

inline thread_local EmulatedAmx emulated_amx;

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig(from) std::memcpy(emulated_amx.shapes, from, 64)
#define _tile_release() std::memset(emulated_amx.shapes, 0, 64)
#define _tile_zero(to) emulated_amx.zero(to)
#define _tile_loadd(to, from, stride) emulated_amx.load(to, from, stride)
#define _tile_stored(from, to, stride) emulated_amx.store(from, to, stride)
#define _tile_dpbsud(to, left, right) emulated_amx.multiply(to, left, right)
