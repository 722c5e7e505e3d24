// Packs and unpacks blocks of GGUF files.
#include <ATen/Parallel.h>
#include <pybind11/stl.h>

#include <atomic>
#include <optional>

#include "kernel_programs/linear.h"
#include "python/kernel_weights.h"
#include "python/module.h"

namespace npu::ops::python {

using kernel_programs::Kind;
using kernel_programs::PackedLinear;

namespace {

void check_rows(const std::optional<at::Tensor>& rows, std::int64_t below) {
  if (!rows) return;
  require_array(*rows, "rows", Element::int64, rows->numel());
  const auto* row = rows->const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows->numel(); ++i) {
    if (row[i] < 0 || row[i] >= below)
      throw py::value_error("`rows` must be below " + std::to_string(below) + ", got " +
                            std::to_string(row[i]));
  }
}

// The rows of a file in a kind's blocks, or some of them, as packed weights.
at::Tensor pack_blocks(const std::string& name, const at::Tensor& blocks, std::int64_t inputs,
                       const std::optional<at::Tensor>& rows) {
  const Kind kind = block_kind(name, inputs);
  const kernel_programs::BlockForm form = kernel_programs::form_of(kind);
  const std::int64_t of_row = inputs / form.file_inputs * form.file_bytes;
  require_array(blocks, "blocks", Element::uint8, blocks.numel() / of_row * of_row);
  check_rows(rows, blocks.numel() / of_row);
  PackedLinear made;
  made.kind = kind;
  made.inputs = static_cast<int>(inputs);
  const std::int64_t outputs = rows ? rows->numel() : blocks.numel() / of_row;
  if (outputs <= 0 || outputs >= (std::int64_t{1} << 31))
    throw py::value_error("`blocks` must have 1 to 2^31 - 1 rows, got " + std::to_string(outputs));
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
  if (!are_finite) throw py::value_error("`blocks` must have finite scales");
  return data;
}

// Rows of a packed weight in float32.
at::Tensor unpack_blocks(const std::string& name, const at::Tensor& data, std::int64_t outputs,
                         std::int64_t inputs, const std::optional<at::Tensor>& rows) {
  PackedLinear weight;
  weight.kind = block_kind(name, inputs);
  weight.inputs = static_cast<int>(inputs);
  weight.outputs = static_cast<int>(outputs);
  require_array(data, "data", Element::uint8,
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

}  // namespace

void bind_block_weights(py::module_& m) {
  m.def("pack_blocks", &pack_blocks);
  m.def("unpack_blocks", &unpack_blocks);
}

}  // namespace npu::ops::python
