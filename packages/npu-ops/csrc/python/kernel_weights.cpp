#include "python/kernel_weights.h"

#include <map>
#include <optional>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "kernel_programs/linear.h"
#include "kernel_programs/row_kernels.h"
#include "python/module.h"

namespace npu::ops::python {

using kernel_programs::Kind;
using kernel_programs::PackedLinear;

void require_tensor(const at::Tensor& tensor, const std::string& name, at::ScalarType dtype,
                    std::int64_t count) {
  if (tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == dtype &&
      tensor.numel() == count) {
    return;
  }
  throw py::value_error(name + ": must be a contiguous cpu tensor of " + std::to_string(count) +
                        " " + c10::toString(dtype) + "; got " + std::to_string(tensor.numel()) +
                        " " + c10::toString(tensor.scalar_type()));
}

PackedLinear packed_linear(const py::object& weight, const std::string& name,
                           std::vector<at::Tensor>& held) {
  static const std::map<std::string, Kind> kinds = {{"float32", Kind::float32},
                                                    {"bfloat16", Kind::bfloat16},
                                                    {"float16", Kind::float16},
                                                    {"int8", Kind::int8},
                                                    {"int4", Kind::int4}};
  if (!py::hasattr(weight, "kind"))
    throw py::value_error(name + ": must be a packed linear weight");
  const auto kind = kinds.find(py::cast<std::string>(weight.attr("kind")));
  if (kind == kinds.end()) throw py::value_error(name + ": is of a kind that is not known");
  PackedLinear made;
  made.kind = kind->second;
  made.outputs = py::cast<int>(weight.attr("outputs"));
  made.inputs = py::cast<int>(weight.attr("inputs"));
  made.group = py::cast<int>(weight.attr("group"));
  if (made.outputs <= 0 || made.inputs <= 0) throw py::value_error(name + ": must not be empty");
  if (made.kind == Kind::int4 && made.group != 32 && made.group != 64 && made.group != 128) {
    throw py::value_error(name + ": groups must have 32, 64 or 128 inputs; got " +
                          std::to_string(made.group));
  }
  const auto tensor = [&](const char* part, at::ScalarType dtype, std::int64_t count) {
    held.push_back(py::cast<at::Tensor>(weight.attr(part)));
    require_tensor(held.back(), name + "." + part, dtype, count);
    return held.back().const_data_ptr();
  };
  made.data = static_cast<const std::uint8_t*>(
      tensor("data", at::kByte, static_cast<std::int64_t>(made.blocks() * made.block_bytes())));
  if (!made.has_integers()) return made;
  const bool is_grouped = made.kind == Kind::int4;
  const std::int64_t scales =
      is_grouped ? std::int64_t{made.blocks()} * made.groups() * kernel_programs::kBlockOutputs
                 : made.outputs;
  made.scales = tensor("scales", is_grouped ? at::kHalf : at::kFloat, scales);
  if (!weight.attr("zeros").is_none()) {
    made.zeros = static_cast<const std::uint8_t*>(tensor("zeros", at::kByte, scales));
  }
  return made;
}

void bind_kernel_weights(py::module_& m) {
  m.def("kernel_sets", &kernel_programs::kernel_sets);
}

}  // namespace npu::ops::python
