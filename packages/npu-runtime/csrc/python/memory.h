// Adds the pool's statistics and settings to the extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace npu::python {

void bind_memory(py::module_& module);

}  // namespace npu::python
