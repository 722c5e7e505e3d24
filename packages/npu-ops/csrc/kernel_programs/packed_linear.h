// Memory layout of a linear layer's weights: in blocks of 16 outputs, in the order they are
// read.
//
// float32, bfloat16, float16: one vector of 16 outputs for each input.
// int8: slabs of 64 inputs: 16 vectors of 64 bytes, each 16 outputs x 4 inputs; unsigned, with a
// zero point per output (128 without) and a float32 scale per output. int4: slabs of 64 inputs: 8
// vectors of 64 bytes, each 16 outputs x 4 inputs in the low nibbles, and the inputs 32 further on
// in the high ones; unsigned, with a zero point (8 without) and a float16 scale for each group of
// 32, 64 or 128 inputs, (block, group, 16). Other kinds have blocks of ggml's types, see
// block_forms.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel_programs/block_forms.h"

namespace npu::ops::kernel_programs {

struct PackedLinear {
  Kind kind = Kind::float32;
  int outputs = 0, inputs = 0;
  int group = 0;  // inputs that share a scale; for int4
  const std::uint8_t* data = nullptr;
  const void* scales = nullptr;         // float32 (outputs,) or float16 (blocks, groups, 16)
  const std::uint8_t* zeros = nullptr;  // of the scales' shape, or null
  // Of kind `mixed`: weights of other block types, with whole blocks of outputs except for the
  // last. Concatenated, or two with alternating blocks, such as gate and up.
  std::vector<PackedLinear> parts = {};
  bool do_alternate = false;

  int blocks() const { return (outputs + kBlockOutputs - 1) / kBlockOutputs; }
  int slabs() const { return (inputs + kSlabInputs - 1) / kSlabInputs; }
  int groups() const { return (inputs + group - 1) / group; }
  bool has_integers() const { return kind >= Kind::int8; }

  std::size_t block_bytes() const {
    switch (kind) {
      case Kind::float32:
        return std::size_t(inputs) * kBlockOutputs * 4;
      case Kind::bfloat16:
      case Kind::float16:
        return std::size_t(inputs) * kBlockOutputs * 2;
      case Kind::int8:
        return std::size_t(slabs()) * kSlabInputs * kBlockOutputs;
      case Kind::int4:
        return std::size_t(slabs()) * kSlabInputs * kBlockOutputs / 2;
      case Kind::mixed:
        return 0;
      default:
        return form_of(kind).block_bytes(inputs);
    }
  }
};

// A block of outputs in its part.
struct PlacedBlock {
  const PackedLinear& weight;
  int block;
};

inline PlacedBlock placed(const PackedLinear& weight, int block) {
  if (weight.kind != Kind::mixed) return {weight, block};
  if (weight.do_alternate) return {weight.parts[block % 2], block / 2};
  std::size_t part = 0;
  while (block >= weight.parts[part].blocks())
    block -= weight.parts[part++].blocks();
  return {weight.parts[part], block};
}

}  // namespace npu::ops::kernel_programs
