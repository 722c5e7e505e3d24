// Programs of the OpenVINO driver: compiled models, their ports and properties.
#include <fstream>
#include <iterator>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "driver/openvino_parts.h"

namespace npu::openvino {
namespace {

// The mode for reading an NPU's blob is a setting of the whole core, which also affects cached
// programs: other compilations run before it is set or after it is reset.
std::shared_mutex core_settings;

bool is_blob(const npu_program_source* source) {
  return source->path != nullptr && std::string_view(source->path).ends_with(".blob");
}

npu_status read_blob(const std::string& content, ov_compiled_model_t** compiled) {
  NPU_OV(ov_core_import_model, device.core, content.data(), content.size(), device.name.c_str(),
         compiled);
  return NPU_OK;
}

npu_status import_blob(const char* path, ov_compiled_model_t** compiled) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (content.empty())
    return fail(NPU_ERROR_ARGUMENT, std::string("program_load: cannot read ") + path);
  if (!device.name.starts_with("NPU")) return read_blob(content, compiled);
  // As written by the compiler, without the plugin's trailer, which has OpenVINO's release.
  constexpr const char* kRaw = "NPU_IMPORT_RAW_BLOB";
  const std::unique_lock lock(core_settings);
  NPU_OV(ov_core_set_property, device.core, device.name.c_str(), kRaw, "YES");
  const npu_status status = read_blob(content, compiled);
  device.api.ov_core_set_property(device.core, device.name.c_str(), kRaw, "NO");
  return status;
}

npu_status compile(const npu_program_source* source, const std::vector<ov_property_t>& properties,
                   ov_compiled_model_t** compiled) {
  const std::shared_lock lock(core_settings);
  if (source->path != nullptr) {
    NPU_OV(ov_core_compile_model_from_file_props, device.core, source->path, device.name.c_str(),
           properties.size(), properties.data(), compiled);
    return NPU_OK;
  }
  Owned<ov_tensor_t> weights{nullptr, device.api.ov_tensor_free};
  if (source->weights != nullptr && source->weights_bytes != 0) {
    std::int64_t size = static_cast<std::int64_t>(source->weights_bytes);
    ov_tensor_t* tensor = nullptr;
    NPU_OV(ov_tensor_create_from_host_ptr, U8, ov_shape_t{1, &size},
           const_cast<void*>(source->weights), &tensor);
    weights.reset(tensor);
  }
  ov_model_t* model = nullptr;
  NPU_OV(ov_core_read_model_from_memory_buffer, device.core, source->model, source->model_bytes,
         weights.get(), &model);
  const Owned<ov_model_t> owned{model, device.api.ov_model_free};
  NPU_OV(ov_core_compile_model_props, device.core, model, device.name.c_str(), properties.size(),
         properties.data(), compiled);
  return NPU_OK;
}

npu_status fill_dims(const ov_output_const_port_t* handle, npu_port* port) {
  ov_partial_shape_t shape{};
  NPU_OV(ov_port_get_partial_shape, handle, &shape);
  const bool is_static_rank = shape.rank.min == shape.rank.max;
  port->rank = is_static_rank ? static_cast<std::int32_t>(shape.rank.min) : -1;
  const bool fits = port->rank <= NPU_MAX_RANK;
  for (std::int32_t i = 0; fits && i < port->rank; ++i) {
    const auto& dim = shape.dims[i];
    port->dims[i] = dim.min == dim.max ? dim.min : NPU_DIM_DYNAMIC;
  }
  device.api.ov_partial_shape_free(&shape);
  if (!fits) {
    return fail(NPU_ERROR_UNSUPPORTED, "program_load: a port has rank " +
                                           std::to_string(port->rank) + ", the limit is " +
                                           std::to_string(NPU_MAX_RANK));
  }
  return NPU_OK;
}

// Halves the last dimension of a port with elements of 4 bits.
npu_status pack_dims(npu_port* port) {
  const std::int32_t last = port->rank - 1;
  if (last < 0 || port->dims[last] < 0 || port->dims[last] % 2 != 0) {
    return fail(NPU_ERROR_UNSUPPORTED,
                "program_load: port " + std::string(port->name) +
                    " has elements of 4 bits, so its last dimension must be fixed and even");
  }
  port->dims[last] /= 2;
  return NPU_OK;
}

npu_status read_port(const ov_compiled_model_t* compiled, npu_direction direction,
                     std::size_t index, npu_port* port, ov_element_type_e* type) {
  *port = {};
  ov_output_const_port_t* handle = nullptr;
  if (direction == NPU_INPUT) {
    NPU_OV(ov_compiled_model_input_by_index, compiled, index, &handle);
  } else {
    NPU_OV(ov_compiled_model_output_by_index, compiled, index, &handle);
  }
  const Owned<ov_output_const_port_t> owned{handle, device.api.ov_output_const_port_free};
  char* name = nullptr;
  // A port may have no name.
  if (device.api.ov_port_get_any_name(handle, &name) == OK) {
    copy_text(port->name, sizeof(port->name), name);
    device.api.ov_free(name);
  }
  NPU_OV(ov_port_get_element_type, handle, type);
  port->dtype = from_openvino(*type);
  if (port->dtype == NPU_DTYPE_INVALID) {
    return fail(NPU_ERROR_UNSUPPORTED, "program_load: port " + std::string(port->name) +
                                           " has OpenVINO element type " +
                                           std::to_string(static_cast<unsigned>(*type)) +
                                           ", which torch tensors do not have");
  }
  NPU_TRY(fill_dims(handle, port));
  return is_half_byte(*type) ? pack_dims(port) : NPU_OK;
}

npu_status read_ports(npu_program& program) {
  for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT}) {
    std::size_t count = 0;
    if (direction == NPU_INPUT) {
      NPU_OV(ov_compiled_model_inputs_size, program.compiled, &count);
    } else {
      NPU_OV(ov_compiled_model_outputs_size, program.compiled, &count);
    }
    program.ports[direction].resize(count);
    program.types[direction].assign(count, DYNAMIC);
    for (std::size_t i = 0; i < count; ++i) {
      NPU_TRY(read_port(program.compiled, direction, i, &program.ports[direction][i],
                        &program.types[direction][i]));
    }
  }
  return NPU_OK;
}

}  // namespace

npu_status check_port(const char* call, const npu_program* program, npu_direction direction,
                      std::size_t index) {
  if (direction != NPU_INPUT && direction != NPU_OUTPUT) {
    return fail(NPU_ERROR_ARGUMENT, std::string(call) + ": a port is an input or an output");
  }
  const std::size_t count = program->ports[direction].size();
  if (index < count) return NPU_OK;
  return fail(NPU_ERROR_ARGUMENT,
              std::string(call) + ": " + (direction == NPU_INPUT ? "input " : "output ") +
                  std::to_string(index) + " does not exist, there are " + std::to_string(count));
}

npu_status program_load(std::int32_t index, const npu_program_source* source,
                        npu_program** program) {
  NPU_TRY(driver::check_device_index("program_load", index));
  if ((source->path == nullptr) == (source->model == nullptr)) {
    return fail(NPU_ERROR_ARGUMENT, "program_load: exactly one of path and model must be set");
  }
  std::vector<ov_property_t> properties(source->option_count);
  for (std::size_t i = 0; i < source->option_count; ++i) {
    properties[i] = {source->options[i].key, source->options[i].value};
  }
  auto loaded = std::make_unique<npu_program>();
  loaded->is_imported = is_blob(source);
  NPU_TRY(loaded->is_imported ? import_blob(source->path, &loaded->compiled)
                              : compile(source, properties, &loaded->compiled));
  if (const npu_status status = read_ports(*loaded); status != NPU_OK) {
    program_unload(loaded.release());
    return status;
  }
  // Without profiling, OpenVINO lists layers without times. A device without the property still
  // lists its layers.
  char profiling[8] = {};
  if (program_property(loaded.get(), "PERF_COUNT", profiling, sizeof(profiling)) == NPU_OK) {
    loaded->has_layers = std::string_view(profiling) == "YES";
  }
  *program = loaded.release();
  return NPU_OK;
}

void program_unload(npu_program* program) {
  device.api.ov_compiled_model_free(program->compiled);
  delete program;
}

npu_status program_port_count(const npu_program* program, npu_direction direction,
                              std::size_t* count) {
  if (direction != NPU_INPUT && direction != NPU_OUTPUT) {
    return fail(NPU_ERROR_ARGUMENT, "program_port_count: a port is an input or an output");
  }
  *count = program->ports[direction].size();
  return NPU_OK;
}

npu_status program_port(const npu_program* program, npu_direction direction, std::size_t index,
                        npu_port* port) {
  NPU_TRY(check_port("program_port", program, direction, index));
  *port = program->ports[direction][index];
  return NPU_OK;
}

npu_status program_property(const npu_program* program, const char* key, char* value,
                            std::size_t bytes) {
  if (std::string_view(key) == "LAYER_SHAPES") return layer_shapes(program, value, bytes);
  if (program->is_imported && std::string_view(key) == "LOADED_FROM_CACHE") {
    copy_text(value, bytes, "YES");
    return NPU_OK;
  }
  char* text = nullptr;
  if (device.api.ov_compiled_model_get_property(program->compiled, key, &text) != OK) {
    return fail(NPU_ERROR_UNSUPPORTED,
                "ov_compiled_model_get_property: the program has no property " + std::string(key));
  }
  copy_text(value, bytes, text);
  device.api.ov_free(text);
  return NPU_OK;
}

}  // namespace npu::openvino
