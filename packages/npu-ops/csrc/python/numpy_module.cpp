// The Python module npu_ops._programs: kernel programs on numpy's arrays, without torch.
#include "python/module.h"

PYBIND11_MODULE(_programs, m) {
  npu::ops::python::bind_sampling(m);
  npu::ops::python::bind_kernel_program(m);
}
