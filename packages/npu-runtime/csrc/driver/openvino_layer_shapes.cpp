// Shapes and precisions of a program's executed layers, as its property LAYER_SHAPES.
//
// OpenVINO's C library returns the executed model, but has no functions to read it. These are in
// the C++ library, and are looked up by symbol name, so that the wheel is not pinned to one
// release. Other releases lack the property.
#include <dlfcn.h>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "driver/openvino_parts.h"

namespace npu::openvino {
namespace {

// OpenVINO's classes, used only by address.
struct Model;
struct Node;
struct Type;
struct Shape;

// The target of ov_model_t* in OpenVINO's C library, the same since 2022.3.
struct ModelHandle {
  std::shared_ptr<Model> model;
};

// Members that are not virtual: plain functions with `this` as the first argument. References are
// returned as addresses.
struct Functions {
  std::vector<std::shared_ptr<Node>> (*ordered_ops)(const Model*) = nullptr;
  const std::string* (*name)(const Node*) = nullptr;
  std::size_t (*input_count)(const Node*) = nullptr;
  std::size_t (*output_count)(const Node*) = nullptr;
  const Type* (*input_type)(const Node*, std::size_t) = nullptr;
  const Type* (*output_type)(const Node*, std::size_t) = nullptr;
  const Shape* (*input_shape)(const Node*, std::size_t) = nullptr;
  const Shape* (*output_shape)(const Node*, std::size_t) = nullptr;
  std::string (*type_text)(const Type*) = nullptr;
  std::string (*shape_text)(const Shape*) = nullptr;
  bool is_complete = true;
};

template <typename Function>
void find(Functions& functions, Function& function, const char* symbol) {
  function = reinterpret_cast<Function>(dlsym(device.api.library, symbol));
  if (function == nullptr) functions.is_complete = false;
}

// Only for tested releases (2026.4.1, 2026-11): their handle is private.
bool is_known_release() {
  ov_version_t version{};
  if (device.api.ov_get_openvino_version(&version) != OK) return false;
  const bool is_known = std::string_view(version.buildNumber).starts_with("2026.4.");
  device.api.ov_version_free(&version);
  return is_known;
}

Functions find_functions() {
  Functions found;
  found.is_complete = is_known_release();
  find(found, found.ordered_ops, "_ZNK2ov5Model15get_ordered_opsEv");
  find(found, found.name, "_ZNK2ov4Node17get_friendly_nameB5cxx11Ev");
  find(found, found.input_count, "_ZNK2ov4Node14get_input_sizeEv");
  find(found, found.output_count, "_ZNK2ov4Node15get_output_sizeEv");
  find(found, found.input_type, "_ZNK2ov4Node22get_input_element_typeEm");
  find(found, found.output_type, "_ZNK2ov4Node23get_output_element_typeEm");
  find(found, found.input_shape, "_ZNK2ov4Node23get_input_partial_shapeEm");
  find(found, found.output_shape, "_ZNK2ov4Node24get_output_partial_shapeEm");
  find(found, found.type_text, "_ZNK2ov7element4Type9to_stringB5cxx11Ev");
  find(found, found.shape_text, "_ZNK2ov12PartialShape9to_stringB5cxx11Ev");
  return found;
}

const Functions& functions() {
  static const Functions found = find_functions();
  return found;
}

// "NAME <tab> f32[1,64] bf16[64,8] <tab> f32[1,8]"; empty without inputs.
void append_layer(const Node* node, std::string& text) {
  const Functions& call = functions();
  const std::size_t inputs = call.input_count(node);
  const std::string& name = *call.name(node);
  if (inputs == 0 || name.find_first_of("\t\n") != std::string::npos) return;
  text += name;
  for (std::size_t i = 0; i < inputs; ++i) {
    text += i == 0 ? '\t' : ' ';
    text += call.type_text(call.input_type(node, i)) + call.shape_text(call.input_shape(node, i));
  }
  const std::size_t outputs = call.output_count(node);
  text += '\t';  // also at the end: a layer that writes a state lacks outputs
  for (std::size_t i = 0; i < outputs; ++i) {
    if (i != 0) text += ' ';
    text += call.type_text(call.output_type(node, i)) + call.shape_text(call.output_shape(node, i));
  }
  text += '\n';
}

npu_status read(const npu_program* program, std::string& text) {
  const Functions& call = functions();
  if (!call.is_complete) {
    return fail(NPU_ERROR_UNSUPPORTED, "LAYER_SHAPES: this release of OpenVINO is not known");
  }
  ov_model_t* handle = nullptr;
  NPU_OV(ov_compiled_model_get_runtime_model, program->compiled, &handle);
  const Owned<ov_model_t> owned{handle, device.api.ov_model_free};
  try {
    text.clear();
    const auto* model = reinterpret_cast<const ModelHandle*>(handle);
    for (const auto& node : call.ordered_ops(model->model.get()))
      append_layer(node.get(), text);
  } catch (const std::exception& error) {
    return fail(NPU_ERROR, std::string("LAYER_SHAPES: ") + error.what());
  }
  return NPU_OK;
}

// Whether to read dynamic sizes: in the first runs, and then as long as reading takes at most a
// fiftieth of the time.
bool is_due(const LayerShapes& shapes) {
  constexpr std::int64_t kAlways = 4;
  constexpr int kTimes = 50;
  return shapes.reads < kAlways ||
         std::chrono::steady_clock::now() - shapes.read_at >= kTimes * shapes.cost;
}

}  // namespace

npu_status layer_shapes(const npu_program* program, char* value, std::size_t bytes) {
  LayerShapes& shapes = program->shapes;
  const std::lock_guard lock(shapes.mutex);
  if (shapes.reads == 0 || shapes.read != shapes.wanted) {
    if (!is_due(shapes)) return fail(NPU_ERROR_UNSUPPORTED, "LAYER_SHAPES: read too recently");
    const auto begin = std::chrono::steady_clock::now();
    NPU_TRY(read(program, shapes.text));
    shapes.read_at = std::chrono::steady_clock::now();
    shapes.cost = shapes.read_at - begin;
    shapes.read = shapes.wanted;
    ++shapes.reads;
  }
  copy_text(value, bytes, shapes.text);
  return NPU_OK;
}

}  // namespace npu::openvino
