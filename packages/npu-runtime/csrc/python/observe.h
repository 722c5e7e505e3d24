// Registers the functions of events in the extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace npu::python {

void bind_observe(py::module_& module);

}  // namespace npu::python
