#include "python/kernel_weights.h"

#include <map>

#include "python/module.h"

namespace npu::ops::python {

using kernel_programs::Kind;
using kernel_programs::PackedLinear;

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
  if (kind == kinds.end()) throw py::value_error("`" + name + "` must be of a known kind");
  return kind->second;
}

}  // namespace

Kind block_kind(const std::string& text, std::int64_t inputs) {
  const Kind kind = kind_named(text, "kind");
  if (!kernel_programs::is_of_blocks(kind) || kind == Kind::mixed)
    throw py::value_error("`kind` must be a block format, got " + text);
  if (inputs <= 0 || inputs >= (1 << 24) || inputs % kernel_programs::form_of(kind).file_inputs)
    throw py::value_error("`inputs` must be a multiple of the block size of " + text + ", got " +
                          std::to_string(inputs));
  return kind;
}

namespace {

void read_parts(const py::object& weight, const std::string& name, std::vector<Array>& held,
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
                           std::vector<Array>& held) {
  if (!py::hasattr(weight, "kind"))
    throw py::value_error("`" + name + "` must be a packed linear weight");
  PackedLinear made;
  made.kind = kind_named(py::cast<std::string>(weight.attr("kind")), name);
  made.outputs = py::cast<int>(weight.attr("outputs"));
  made.inputs = py::cast<int>(weight.attr("inputs"));
  made.group = py::cast<int>(weight.attr("group"));
  if (made.outputs <= 0 || made.inputs <= 0)
    throw py::value_error("`" + name + "` must not be empty");
  if (made.kind == Kind::int4 && made.group != 32 && made.group != 64 && made.group != 128) {
    throw py::value_error(name + ": groups must have 32, 64 or 128 inputs, got " +
                          std::to_string(made.group));
  }
  if (made.kind == Kind::mixed) {
    read_parts(weight, name, held, made);
    return made;
  }
  if (kernel_programs::is_of_blocks(made.kind)) {
    block_kind(py::cast<std::string>(weight.attr("kind")), made.inputs);
  }
  const auto array = [&](const char* part, Element element, std::int64_t count) {
    held.push_back(py::cast<Array>(weight.attr(part)));
    require_array(held.back(), name + "." + part, element, count);
    return read(held.back());
  };
  made.data = static_cast<const std::uint8_t*>(
      array("data", Element::uint8, static_cast<std::int64_t>(made.blocks() * made.block_bytes())));
  if (made.kind != Kind::int8 && made.kind != Kind::int4) return made;
  const bool is_grouped = made.kind == Kind::int4;
  const std::int64_t scales =
      is_grouped ? std::int64_t{made.blocks()} * made.groups() * kernel_programs::kBlockOutputs
                 : made.outputs;
  made.scales = array("scales", is_grouped ? Element::float16 : Element::float32, scales);
  if (!weight.attr("zeros").is_none()) {
    made.zeros = static_cast<const std::uint8_t*>(array("zeros", Element::uint8, scales));
  }
  return made;
}

}  // namespace npu::ops::python
