#include "python/kernel_weights.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <atomic>
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

namespace {

Kind kind_named(const std::string& text, const std::string& name) {
  static const std::map<std::string, Kind> kinds = {
      {"float32", Kind::float32}, {"bfloat16", Kind::bfloat16}, {"float16", Kind::float16},
      {"int8", Kind::int8},       {"int4", Kind::int4},         {"q4_0", Kind::q4_0},
      {"q4_1", Kind::q4_1},       {"q5_0", Kind::q5_0},         {"q5_1", Kind::q5_1},
      {"q8_0", Kind::q8_0},       {"q2_k", Kind::q2_k},         {"q3_k", Kind::q3_k},
      {"q4_k", Kind::q4_k},       {"q5_k", Kind::q5_k},         {"q6_k", Kind::q6_k},
      {"iq4_nl", Kind::iq4_nl},   {"iq4_xs", Kind::iq4_xs},     {"mxfp4", Kind::mxfp4},
      {"mixed", Kind::mixed}};
  const auto kind = kinds.find(text);
  if (kind == kinds.end()) throw py::value_error(name + ": is of a kind that is not known");
  return kind->second;
}

// A kind of blocks that a row of so many inputs can have.
Kind block_kind(const std::string& text, std::int64_t inputs) {
  const Kind kind = kind_named(text, "kind");
  if (!kernel_programs::is_of_blocks(kind) || kind == Kind::mixed)
    throw py::value_error("kind: must be one of blocks; got " + text);
  if (inputs <= 0 || inputs >= (1 << 24) || inputs % kernel_programs::form_of(kind).file_inputs)
    throw py::value_error("inputs: must be whole blocks of " + text + "; got " +
                          std::to_string(inputs));
  return kind;
}

void check_rows(const std::optional<at::Tensor>& rows, std::int64_t below) {
  if (!rows) return;
  require_tensor(*rows, "rows", at::kLong, rows->numel());
  const auto* row = rows->const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows->numel(); ++i) {
    if (row[i] < 0 || row[i] >= below)
      throw py::value_error("rows: must be below " + std::to_string(below) + "; got " +
                            std::to_string(row[i]));
  }
}

// The rows of a file in a kind's blocks, or some of them, as packed weights have them.
at::Tensor pack_blocks(const std::string& name, const at::Tensor& blocks, std::int64_t inputs,
                       const std::optional<at::Tensor>& rows) {
  const Kind kind = block_kind(name, inputs);
  const kernel_programs::BlockForm form = kernel_programs::form_of(kind);
  const std::int64_t of_row = inputs / form.file_inputs * form.file_bytes;
  require_tensor(blocks, "blocks", at::kByte, blocks.numel() / of_row * of_row);
  check_rows(rows, blocks.numel() / of_row);
  PackedLinear made;
  made.kind = kind;
  made.inputs = static_cast<int>(inputs);
  const std::int64_t outputs = rows ? rows->numel() : blocks.numel() / of_row;
  if (outputs <= 0 || outputs >= (std::int64_t{1} << 31))
    throw py::value_error("blocks: must be some rows; got " + std::to_string(outputs));
  made.outputs = static_cast<int>(outputs);
  at::Tensor data =
      at::empty({static_cast<std::int64_t>(made.blocks() * made.block_bytes())}, at::kByte);
  const auto* file = blocks.const_data_ptr<std::uint8_t>();
  const auto* order = rows ? rows->const_data_ptr<std::int64_t>() : nullptr;
  auto* to = data.mutable_data_ptr<std::uint8_t>();
  std::atomic<bool> are_finite{true};
  {
    const py::gil_scoped_release unlocked;
    at::parallel_for(0, made.blocks(), 8, [&](std::int64_t first, std::int64_t last) {
      if (!kernel_programs::pack_block_rows(kind, file, made.outputs, made.inputs, order,
                                            static_cast<int>(first), static_cast<int>(last), to)) {
        are_finite = false;
      }
    });
  }
  if (!are_finite) throw py::value_error("blocks: a scale is not finite");
  return data;
}

// Rows of a packed weight in float32.
at::Tensor unpack_blocks(const std::string& name, const at::Tensor& data, std::int64_t outputs,
                         std::int64_t inputs, const std::optional<at::Tensor>& rows) {
  PackedLinear weight;
  weight.kind = block_kind(name, inputs);
  weight.inputs = static_cast<int>(inputs);
  weight.outputs = static_cast<int>(outputs);
  require_tensor(data, "data", at::kByte,
                 static_cast<std::int64_t>(weight.blocks() * weight.block_bytes()));
  check_rows(rows, outputs);
  const std::int64_t count = rows ? rows->numel() : outputs;
  at::Tensor values = at::empty({count, inputs}, at::kFloat);
  const auto* from = data.const_data_ptr<std::uint8_t>();
  const auto* chosen = rows ? rows->const_data_ptr<std::int64_t>() : nullptr;
  auto* to = values.mutable_data_ptr<float>();
  const py::gil_scoped_release unlocked;
  at::parallel_for(0, count, 32, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      kernel_programs::read_block_row(weight.kind, from, chosen == nullptr ? i : chosen[i],
                                      weight.inputs, to + i * inputs);
    }
  });
  return values;
}

void read_parts(const py::object& weight, const std::string& name, std::vector<at::Tensor>& held,
                PackedLinear& made) {
  made.do_alternate = py::cast<bool>(weight.attr("alternating"));
  int outputs = 0;
  for (const auto& one : weight.attr("parts")) {
    const bool was_whole = outputs % kernel_programs::kBlockOutputs == 0;
    const PackedLinear part =
        packed_linear(py::reinterpret_borrow<py::object>(one), name + ".parts", held);
    if (!kernel_programs::is_of_blocks(part.kind) || part.kind == Kind::mixed ||
        part.inputs != made.inputs || !was_whole) {
      throw py::value_error(name +
                            ": parts must be of blocks, of as many inputs, and of whole "
                            "blocks of 16 outputs");
    }
    outputs += part.outputs;
    made.parts.push_back(part);
  }
  const bool are_pair = made.parts.size() == 2 && made.outputs % 32 == 0 &&
                        made.parts[0].outputs == made.parts[1].outputs;
  if (outputs != made.outputs || (made.do_alternate && !are_pair))
    throw py::value_error(name + ": parts must have its outputs, and two alternate");
}

}  // namespace

PackedLinear packed_linear(const py::object& weight, const std::string& name,
                           std::vector<at::Tensor>& held) {
  if (!py::hasattr(weight, "kind"))
    throw py::value_error(name + ": must be a packed linear weight");
  PackedLinear made;
  made.kind = kind_named(py::cast<std::string>(weight.attr("kind")), name);
  made.outputs = py::cast<int>(weight.attr("outputs"));
  made.inputs = py::cast<int>(weight.attr("inputs"));
  made.group = py::cast<int>(weight.attr("group"));
  if (made.outputs <= 0 || made.inputs <= 0) throw py::value_error(name + ": must not be empty");
  if (made.kind == Kind::int4 && made.group != 32 && made.group != 64 && made.group != 128) {
    throw py::value_error(name + ": groups must have 32, 64 or 128 inputs; got " +
                          std::to_string(made.group));
  }
  if (made.kind == Kind::mixed) {
    read_parts(weight, name, held, made);
    return made;
  }
  if (kernel_programs::is_of_blocks(made.kind)) {
    block_kind(py::cast<std::string>(weight.attr("kind")), made.inputs);
  }
  const auto tensor = [&](const char* part, at::ScalarType dtype, std::int64_t count) {
    held.push_back(py::cast<at::Tensor>(weight.attr(part)));
    require_tensor(held.back(), name + "." + part, dtype, count);
    return held.back().const_data_ptr();
  };
  made.data = static_cast<const std::uint8_t*>(
      tensor("data", at::kByte, static_cast<std::int64_t>(made.blocks() * made.block_bytes())));
  if (made.kind != Kind::int8 && made.kind != Kind::int4) return made;
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
  m.def("pack_blocks", &pack_blocks);
  m.def("unpack_blocks", &unpack_blocks);
}

}  // namespace npu::ops::python
