// Packed weights of Python (npu_ops.kernel_programs.weights) as the kernels take them, checked.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "kernel_programs/packed_linear.h"

namespace npu::ops::python {

// Raises ValueError unless `tensor` is contiguous, on cpu, and of this dtype and size.
void require_tensor(const at::Tensor& tensor, const std::string& name, at::ScalarType dtype,
                    std::int64_t count);

// The weight; its memory is that of tensors which are appended to `held`.
kernel_programs::PackedLinear packed_linear(const pybind11::object& weight, const std::string& name,
                                            std::vector<at::Tensor>& held);

}  // namespace npu::ops::python
