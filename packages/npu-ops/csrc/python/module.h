// The parts of the Python module npu_ops._C.
#pragma once

#include <pybind11/pybind11.h>

namespace npu::ops::python {

namespace py = pybind11;

void bind_host_use(py::module_& m);
void bind_variants(py::module_& m);

}  // namespace npu::ops::python
