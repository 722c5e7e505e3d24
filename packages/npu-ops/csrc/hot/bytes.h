// Shortcuts for small copies and single numbers. copies.cpp does the rest.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace npu::ops::hot {

// Copies a small contiguous tensor to another of its shape and dtype, between npu and cpu or within
// one. Returns false without copying if the pair is not that simple.
bool copy_plainly(const at::Tensor& source, const at::Tensor& destination);

// The element of a common tensor that has one.
std::optional<at::Scalar> plain_number(const at::Tensor& tensor);

}  // namespace npu::ops::hot
