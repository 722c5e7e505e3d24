// Adds Program, Session and Port to the extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace npu::python {

void bind_program(py::module_& module);

}  // namespace npu::python
