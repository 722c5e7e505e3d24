// Adds streams' switches, captured graphs and the simulated device's controls to the extension
// module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace npu::python {

void bind_streams(py::module_& module);

}  // namespace npu::python
