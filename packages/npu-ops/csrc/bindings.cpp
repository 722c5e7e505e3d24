// The Python module npu_ops._C. Loading it registers the kernels (registrations.cpp).

#include <pybind11/pybind11.h>

#include "op_plan.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.def("fallback_counts", [] {
    py::dict counts;
    for (const auto& [name, calls] : npu::ops::fallback_counts())
      counts[py::str(name)] = calls;
    return counts;
  });
  m.def("reset_fallback_counts", &npu::ops::reset_fallback_counts);
}
