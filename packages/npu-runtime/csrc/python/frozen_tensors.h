// Adds FrozenTensors to the extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace npu::python {

void bind_frozen_tensors(py::module_& module);

}  // namespace npu::python
