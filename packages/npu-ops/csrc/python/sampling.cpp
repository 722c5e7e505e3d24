// Bindings of the sampler, for npu_ops.kernel_programs.sampler.
//
// Both keep the GIL: a row takes microseconds, and another thread that took the GIL meanwhile would
// delay the next step for longer.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "kernel_programs/row_kernels.h"
#include "kernel_programs/sampling.h"
#include "python/array.h"
#include "python/module.h"

namespace npu::ops::python {
namespace {

void require_logits(const Array& logits) {
  if (dims_of(logits) == 2 && size_of(logits, 1) > 0 && is_plain(logits, Element::float32)) return;
  throw py::value_error("`logits` must be contiguous (rows, at least 1) float32 on cpu");
}

// (rows,) int64.
Array argmax(const Array& logits) {
  require_logits(logits);
  const kernel_programs::RowKernels& kernels = *kernel_programs::row_kernels(nullptr);
  const std::int64_t rows = size_of(logits, 0), width = size_of(logits, 1);
  const float* x = static_cast<const float*>(read(logits));
  Array found = make_array(Element::int64, {rows});
  auto* to = static_cast<std::int64_t*>(write(found));
  for (std::int64_t row = 0; row < rows; ++row)
    to[row] = kernels.argmax(x + row * width, width);
  return found;
}

// A token for each row, -1 for none.
std::vector<std::int64_t> sample_rows(const Array& logits, const std::vector<double>& temperatures,
                                      const std::vector<std::int64_t>& top_k,
                                      const std::vector<double>& top_p,
                                      const std::vector<double>& min_p,
                                      const std::vector<double>& points) {
  require_logits(logits);
  const auto rows = static_cast<std::size_t>(size_of(logits, 0));
  if (temperatures.size() != rows || top_k.size() != rows || top_p.size() != rows ||
      min_p.size() != rows || points.size() != rows) {
    throw py::value_error("`logits` must have as many rows as there are draws, got " +
                          std::to_string(rows));
  }
  const kernel_programs::RowKernels& kernels = *kernel_programs::row_kernels(nullptr);
  const std::int64_t width = size_of(logits, 1);
  const float* x = static_cast<const float*>(read(logits));
  std::vector<std::int64_t> found(rows);
  static thread_local kernel_programs::SamplingScratch room;
  for (std::size_t row = 0; row < rows; ++row) {
    found[row] = kernel_programs::sample(
        kernels, x + static_cast<std::int64_t>(row) * width, width,
        {temperatures[row], top_k[row], top_p[row], min_p[row], points[row]}, room);
  }
  return found;
}

}  // namespace

void bind_sampling(py::module_& m) {
  m.def("arg_max", &argmax, py::arg("logits"));
  m.def("draw", &sample_rows, py::arg("logits"), py::arg("temperatures"), py::arg("top_k"),
        py::arg("top_p"), py::arg("min_p"), py::arg("points"));
}

}  // namespace npu::ops::python
