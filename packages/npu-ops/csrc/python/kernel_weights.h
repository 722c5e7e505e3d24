// Packed weights of Python (npu_ops.kernel_programs.weights) in the kernels' format, validated.
#pragma once

#include <string>
#include <vector>

#include "kernel_programs/packed_linear.h"
#include "python/array.h"

namespace npu::ops::python {

// The block kind for rows of this many inputs; raises ValueError for another.
kernel_programs::Kind block_kind(const std::string& text, std::int64_t inputs);

// The weight; its memory belongs to arrays appended to `held`.
kernel_programs::PackedLinear packed_linear(const py::object& weight, const std::string& name,
                                            std::vector<Array>& held);

}  // namespace npu::ops::python
