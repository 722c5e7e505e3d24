// The signature that a program depends on: the device, dtypes, shapes and axis orders of the
// tensors, and all other arguments by value. Two calls with one signature can share a program.
//
// Programs themselves are in program_cache.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

namespace npu::ops::variants {

struct Signature {
  c10::SmallVector<std::int64_t, 40> words;
  std::size_t hash = 0;

  bool operator==(const Signature& other) const { return words == other.words; }
};

// Axes in memory order, outermost first: `permute(order)` is contiguous. Empty if the tensor is
// contiguous, or if no order makes it so (gaps, or shared elements); such a tensor is copied for a
// program.
std::vector<std::int64_t> axis_order(const at::Tensor& tensor);

// Empty for a call that programs do not support: tensors that are empty, not strided, or not all on
// one npu device; lists of tensors, generators and complex numbers.
std::optional<Signature> signature_of(at::ArrayRef<c10::IValue> arguments, bool needs_grad);

}  // namespace npu::ops::variants
