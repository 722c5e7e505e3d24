// Adds as_cpu and as_npu to the extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace npu::python {

void bind_views(py::module_& module);

}  // namespace npu::python
