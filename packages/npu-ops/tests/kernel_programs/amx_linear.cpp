// Prints a sum of every product's bits, with AMX's products or without: `amx_linear with|without`.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernel_programs/amx_products.h"
#include "kernel_programs/linear.h"

namespace npu::ops::kernel_programs {

namespace avx512_bf16 {
extern const LinearKernels kLinearKernels;
}

static bool is_with = false;
static int slabs_multiplied = 0;

static void counted(const std::uint8_t* weights, std::size_t block_bytes, int blocks,
                    bool are_nibbles, const std::int8_t* x, std::size_t stride, int rows,
                    std::int32_t* sums) {
  ++slabs_multiplied;
  kAmxProducts.slab(weights, block_bytes, blocks, are_nibbles, x, stride, rows, sums);
}

const AmxProducts* amx_products() {
  static const AmxProducts products = {kAmxProducts.begin, kAmxProducts.end, counted};
  return is_with ? &products : nullptr;
}

static std::uint32_t drawn() {
  static std::uint32_t state = 1;
  return (state = state * 1664525 + 1013904223) >> 16;
}

static void multiply(Kind kind, int group, int rows, int outputs, int inputs, bool gated,
                     bool has_zeros) {
  const LinearKernels& kernels = avx512_bf16::kLinearKernels;
  PackedLinear weight{.kind = kind, .outputs = outputs, .inputs = inputs, .group = group};
  std::vector<std::uint8_t> data(weight.block_bytes() * weight.blocks());
  for (auto& byte : data)
    byte = static_cast<std::uint8_t>(drawn());
  const std::size_t count =
      kind == Kind::int8 ? outputs : std::size_t(weight.blocks()) * weight.groups() * kBlockOutputs;
  std::vector<float> scales(count);
  std::vector<std::uint16_t> halves(count);
  std::vector<std::uint8_t> zeros(count);
  for (std::size_t i = 0; i < count; ++i) {
    scales[i] = 0.01F + 0.0001F * static_cast<float>(drawn() % 100);
    halves[i] = static_cast<std::uint16_t>(0x1C00 + drawn() % 512);
    zeros[i] = static_cast<std::uint8_t>(drawn() % (kind == Kind::int8 ? 256 : 16));
  }
  weight.data = data.data();
  weight.scales = kind == Kind::int8 ? static_cast<void*>(scales.data()) : halves.data();
  weight.zeros = has_zeros ? zeros.data() : nullptr;
  const int slabs = weight.slabs();
  std::vector<std::int8_t> integers(std::size_t(rows) * slabs * kSlabInputs);
  std::vector<float> row_scales(rows * slabs), sums(rows * slabs * kSumsOfSlab), x(inputs);
  for (int row = 0; row < rows; ++row) {
    for (float& value : x)
      value = static_cast<float>(drawn() % 2001) / 1000 - 1;
    kernels.quantize(x.data(), inputs, integers.data() + std::size_t(row) * slabs * kSlabInputs,
                     row_scales.data() + row * slabs, sums.data() + row * slabs * kSumsOfSlab);
  }
  std::vector<float> out(std::size_t(rows) * outputs);
  const Finish finish{.gated = gated};
  kernels.linear(weight, {nullptr, 0, integers.data(), row_scales.data(), sums.data()}, rows,
                 out.data(), outputs, 0, weight.blocks(), finish);
  std::uint64_t hash = 0;
  for (const float value : out) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 1099511628211U;
  }
  std::printf("%016" PRIx64 "\n", hash);
}

}  // namespace npu::ops::kernel_programs

int main(int, char** arguments) {
  using namespace npu::ops::kernel_programs;
  is_with = std::strcmp(arguments[1], "with") == 0;
  if (is_with && !are_right(kAmxProducts)) {
    std::puts("wrong");
    return 0;
  }
  for (const int rows : {1, 7, 8, 16, 17, 33, 40, 97}) {
    multiply(Kind::int8, 0, rows, 80, 192, false, rows % 2 == 0);
    multiply(Kind::int8, 0, rows, 64, 100, true, false);
    multiply(Kind::int8, 0, rows, 37, 64, false, true);
    for (const int group : {32, 64, 128}) {
      multiply(Kind::int4, group, rows, 80, 256, false, rows % 2 == 0);
      multiply(Kind::int4, group, rows, 64, 200, true, true);
    }
  }
  std::fprintf(stderr, "%d\n", slabs_multiplied);
}
