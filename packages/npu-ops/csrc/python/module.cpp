// The Python module npu_ops._C. Loading it registers the kernels (registrations.cpp).
#include "python/module.h"

PYBIND11_MODULE(_C, m) {
  npu::ops::python::bind_sampling(m);
  npu::ops::python::bind_host_use(m);
  npu::ops::python::bind_kernel_program(m);
  npu::ops::python::bind_block_weights(m);
  npu::ops::python::bind_tensor_call(m);
  npu::ops::python::bind_variants(m);
}
