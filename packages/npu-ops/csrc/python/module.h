// The parts of the Python modules npu_ops._C and npu_ops._programs.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace npu::ops::python {

namespace py = pybind11;

// Class and text of a Python exception, without the frames that what() lists.
inline std::string one_line(const py::error_already_set& error) {
  return std::string(py::str(error.type().attr("__name__"))) + ": " +
         std::string(py::str(error.value()));
}

void bind_sampling(py::module_& m);
void bind_host_use(py::module_& m);
void bind_kernel_program(py::module_& m);
void bind_block_weights(py::module_& m);
void bind_tensor_call(py::module_& m);
void bind_variants(py::module_& m);

}  // namespace npu::ops::python
