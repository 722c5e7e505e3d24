// The OpenVINO driver: which device serves, its memory, and programs as compiled models.
//
// One OpenVINO device is one npu device. Loading the library and checking it is in
// openvino_api.cpp; who calls this table is in choice.cpp.
#include "driver/openvino.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/host_streams.h"
#include "driver/openvino_api.h"

struct npu_program {
  ov_compiled_model_t* compiled = nullptr;
};

namespace npu::openvino {

// What a port of a request is bound to, so that binding the same memory again costs nothing.
struct Binding {
  void* data = nullptr;
  std::vector<std::int64_t> dims;
};

}  // namespace npu::openvino

struct npu_request {
  ov_infer_request_t* infer = nullptr;
  std::vector<npu::openvino::Binding> bindings[2];  // by npu_direction
};

namespace npu::openvino {
namespace {

Api api;
ov_core_t* core = nullptr;
std::string device_name;
std::string reason;
thread_local std::string last_error_text;

npu_status fail(npu_status status, std::string text) {
  last_error_text = std::move(text);
  return status;
}

// OpenVINO's message without the lines that name its own source files, on one line.
std::string sentence(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    const std::size_t end = std::min(message.find('\n'), message.size());
    const std::string_view line = message.substr(0, end);
    if (!line.empty() && !line.starts_with("Exception from ")) {
      text += (text.empty() ? "" : " ") + std::string(line);
    }
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return text;
}

// Passes OpenVINO's own message on, with the call that gave it.
npu_status fail_call(const char* call, ov_status_e status) {
  const char* detail = api.ov_get_last_err_msg();
  std::string text = std::string(call) + ": " + api.ov_get_error_info(status);
  if (detail != nullptr && *detail != '\0') text += ": " + sentence(detail);
  const npu_status mapped = status == NOT_IMPLEMENTED      ? NPU_ERROR_UNSUPPORTED
                            : status == PARAMETER_MISMATCH ? NPU_ERROR_ARGUMENT
                                                           : NPU_ERROR;
  return fail(mapped, std::move(text));
}

#define NPU_OV(name, ...)                                                   \
  do {                                                                      \
    if (const ov_status_e status_ = api.name(__VA_ARGS__); status_ != OK) { \
      return fail_call(#name, status_);                                     \
    }                                                                       \
  } while (false)

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

void copy_text(char* to, std::size_t bytes, std::string_view text) {
  const std::size_t n = std::min(bytes - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

constexpr std::pair<npu_dtype, ov_element_type_e> kDtypes[] = {
    {NPU_DTYPE_BOOL, BOOLEAN}, {NPU_DTYPE_UINT8, U8},      {NPU_DTYPE_INT8, I8},
    {NPU_DTYPE_INT16, I16},    {NPU_DTYPE_INT32, I32},     {NPU_DTYPE_INT64, I64},
    {NPU_DTYPE_FLOAT16, F16},  {NPU_DTYPE_BFLOAT16, BF16}, {NPU_DTYPE_FLOAT32, F32},
    {NPU_DTYPE_FLOAT64, F64}};

std::optional<ov_element_type_e> to_openvino(npu_dtype dtype) {
  for (const auto& [ours, theirs] : kDtypes) {
    if (ours == dtype) return theirs;
  }
  return std::nullopt;
}

npu_dtype from_openvino(ov_element_type_e type) {
  for (const auto& [ours, theirs] : kDtypes) {
    if (theirs == type) return ours;
  }
  return NPU_DTYPE_INVALID;
}

const char* last_error() {
  return last_error_text.c_str();
}
const char* choice_reason() {
  return reason.c_str();
}

npu_status list_devices(std::vector<std::string>& names) {
  ov_available_devices_t devices{};
  NPU_OV(ov_core_get_available_devices, core, &devices);
  for (std::size_t i = 0; i < devices.size; ++i)
    names.emplace_back(devices.devices[i]);
  api.ov_available_devices_free(&devices);
  return NPU_OK;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// "NPU" also finds "NPU.0": OpenVINO numbers devices when there are several of a kind.
bool find_device(const std::vector<std::string>& names, std::string_view wanted,
                 std::string& found) {
  for (const auto& name : names) {
    if (name == wanted || (name.starts_with(wanted) && name[wanted.size()] == '.')) {
      found = name;
      return true;
    }
  }
  return false;
}

npu_status choose_device(const char* requested) {
  std::vector<std::string> names;
  if (const npu_status status = list_devices(names); status != NPU_OK) return status;
  if (requested != nullptr && *requested != '\0') {
    if (!find_device(names, requested, device_name)) {
      return fail(NPU_ERROR_ABSENT, "NPU_DEVICE=" + std::string(requested) +
                                        " was asked for, and OpenVINO finds only: " + join(names));
    }
    reason = "NPU_DEVICE=" + std::string(requested) + " asks for it";
    return NPU_OK;
  }
  if (find_device(names, "NPU", device_name)) {
    reason = "OpenVINO finds an NPU on this machine";
    return NPU_OK;
  }
  if (find_device(names, "CPU", device_name)) {
    reason = "OpenVINO finds no NPU on this machine, so its CPU plugin serves as the npu device";
    return NPU_OK;
  }
  return fail(NPU_ERROR_ABSENT,
              "OpenVINO finds neither an NPU nor its CPU plugin; it finds: " + join(names));
}

npu_status open_driver(const char* vendor_library, const char* requested_device) {
  if (vendor_library == nullptr) {
    return fail(NPU_ERROR_ABSENT, "the openvino package is not installed, or has no C library");
  }
  if (std::string problem = load_api(vendor_library, api); !problem.empty()) {
    return fail(NPU_ERROR_ABSENT, std::move(problem));
  }
  NPU_OV(ov_core_create, &core);
  return choose_device(requested_device);
}

npu_status device_count(std::int32_t* count) {
  *count = device_name.empty() ? 0 : 1;
  return NPU_OK;
}

npu_status core_property(const char* key, char* value, std::size_t bytes) {
  char* text = nullptr;
  NPU_OV(ov_core_get_property, core, device_name.c_str(), key, &text);
  copy_text(value, bytes, text);
  api.ov_free(text);
  return NPU_OK;
}

npu_status device_properties(std::int32_t device, npu_device_properties* properties) {
  *properties = {};
  copy_text(properties->name, sizeof(properties->name), device_name);
  if (core_property("FULL_DEVICE_NAME", properties->full_name, sizeof(properties->full_name)) !=
      NPU_OK) {
    copy_text(properties->full_name, sizeof(properties->full_name), device_name);
  }
  // Absent on some devices; an empty list then says that the vendor does not tell.
  core_property("OPTIMIZATION_CAPABILITIES", properties->capabilities,
                sizeof(properties->capabilities));
  ov_version_t version{};
  if (api.ov_get_openvino_version(&version) == OK) {
    copy_text(properties->driver_version, sizeof(properties->driver_version), version.buildNumber);
    api.ov_version_free(&version);
  }
  // The CPU plugin computes on the host's own cores: while a program runs, the host has nothing to
  // compute on, so a run in line loses nothing and saves the hand-over. Other devices work beside
  // it.
  constexpr std::int64_t kInlineBelowNs = 200'000;
  properties->inline_below_ns =
      device_name == "CPU" ? std::numeric_limits<std::int64_t>::max() : kInlineBelowNs;
  // All devices of this driver work in the machine's own memory.
  struct sysinfo info{};
  if (sysinfo(&info) == 0) properties->memory_bytes = std::uint64_t{info.totalram} * info.mem_unit;
  return NPU_OK;
}

// Host memory needs no preparation: whatever is committed is an address the device can be given.
npu_status memory_attach(void*, std::size_t) {
  return NPU_OK;
}

npu_status memory_commit(std::int32_t, void* address, std::size_t size_bytes) {
  if (mprotect(address, size_bytes, PROT_READ | PROT_WRITE) != 0) {
    return fail(NPU_ERROR_MEMORY, std::string("mprotect: ") + std::strerror(errno));
  }
  constexpr std::size_t kHugePage = 2U << 20U;
  // Advice only: without huge pages the memory is right and merely slower to touch first.
  if (size_bytes >= kHugePage) madvise(address, size_bytes, MADV_HUGEPAGE);
  return NPU_OK;
}

npu_status memory_decommit(std::int32_t, void* address, std::size_t size_bytes) {
  void* mapped = mmap(address, size_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) return fail(NPU_ERROR, std::string("mmap: ") + std::strerror(errno));
  return NPU_OK;
}

npu_status compile(const npu_program_source* source, const std::vector<ov_property_t>& properties,
                   ov_compiled_model_t** compiled) {
  if (source->path != nullptr) {
    NPU_OV(ov_core_compile_model_from_file_props, core, source->path, device_name.c_str(),
           properties.size(), properties.data(), compiled);
    return NPU_OK;
  }
  Owned<ov_tensor_t> weights{nullptr, api.ov_tensor_free};
  if (source->weights != nullptr && source->weights_bytes != 0) {
    std::int64_t size = static_cast<std::int64_t>(source->weights_bytes);
    ov_tensor_t* tensor = nullptr;
    NPU_OV(ov_tensor_create_from_host_ptr, U8, ov_shape_t{1, &size},
           const_cast<void*>(source->weights), &tensor);
    weights.reset(tensor);
  }
  ov_model_t* model = nullptr;
  NPU_OV(ov_core_read_model_from_memory_buffer, core, source->model, source->model_bytes,
         weights.get(), &model);
  const Owned<ov_model_t> owned{model, api.ov_model_free};
  NPU_OV(ov_core_compile_model_props, core, model, device_name.c_str(), properties.size(),
         properties.data(), compiled);
  return NPU_OK;
}

npu_status program_load(std::int32_t, const npu_program_source* source, npu_program** program) {
  std::vector<ov_property_t> properties(source->option_count);
  for (std::size_t i = 0; i < source->option_count; ++i) {
    properties[i] = {source->options[i].key, source->options[i].value};
  }
  ov_compiled_model_t* compiled = nullptr;
  if (const npu_status status = compile(source, properties, &compiled); status != NPU_OK)
    return status;
  *program = new npu_program{compiled};
  return NPU_OK;
}

void program_unload(npu_program* program) {
  api.ov_compiled_model_free(program->compiled);
  delete program;
}

npu_status program_port_count(const npu_program* program, npu_direction direction,
                              std::size_t* count) {
  if (direction == NPU_INPUT) {
    NPU_OV(ov_compiled_model_inputs_size, program->compiled, count);
  } else {
    NPU_OV(ov_compiled_model_outputs_size, program->compiled, count);
  }
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
  api.ov_partial_shape_free(&shape);
  if (!fits) {
    return fail(NPU_ERROR_UNSUPPORTED, "a port has rank " + std::to_string(port->rank) +
                                           ", the limit is " + std::to_string(NPU_MAX_RANK));
  }
  return NPU_OK;
}

npu_status program_port(const npu_program* program, npu_direction direction, std::size_t index,
                        npu_port* port) {
  *port = {};
  ov_output_const_port_t* handle = nullptr;
  if (direction == NPU_INPUT) {
    NPU_OV(ov_compiled_model_input_by_index, program->compiled, index, &handle);
  } else {
    NPU_OV(ov_compiled_model_output_by_index, program->compiled, index, &handle);
  }
  const Owned<ov_output_const_port_t> owned{handle, api.ov_output_const_port_free};
  char* name = nullptr;
  // A port without a name is legal; it keeps the empty one.
  if (api.ov_port_get_any_name(handle, &name) == OK) {
    copy_text(port->name, sizeof(port->name), name);
    api.ov_free(name);
  }
  ov_element_type_e type = DYNAMIC;
  NPU_OV(ov_port_get_element_type, handle, &type);
  port->dtype = from_openvino(type);
  if (port->dtype == NPU_DTYPE_INVALID) {
    return fail(NPU_ERROR_UNSUPPORTED, "port " + std::string(port->name) +
                                           " has OpenVINO element type " +
                                           std::to_string(static_cast<unsigned>(type)) +
                                           ", which torch tensors do not have");
  }
  return fill_dims(handle, port);
}

npu_status program_property(const npu_program* program, const char* key, char* value,
                            std::size_t bytes) {
  char* text = nullptr;
  if (api.ov_compiled_model_get_property(program->compiled, key, &text) != OK) {
    return fail(NPU_ERROR_UNSUPPORTED, "the program has no property " + std::string(key));
  }
  copy_text(value, bytes, text);
  api.ov_free(text);
  return NPU_OK;
}

npu_status request_create(npu_program* program, npu_request** request) {
  std::size_t counts[2] = {0, 0};
  for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT}) {
    if (const npu_status status = program_port_count(program, direction, &counts[direction]);
        status != NPU_OK) {
      return status;
    }
  }
  ov_infer_request_t* infer = nullptr;
  NPU_OV(ov_compiled_model_create_infer_request, program->compiled, &infer);
  auto created = std::make_unique<npu_request>();
  created->infer = infer;
  created->bindings[NPU_INPUT].resize(counts[NPU_INPUT]);
  created->bindings[NPU_OUTPUT].resize(counts[NPU_OUTPUT]);
  *request = created.release();
  return NPU_OK;
}

void request_destroy(npu_request* request) {
  api.ov_infer_request_free(request->infer);
  delete request;
}

npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data) {
  Binding& bound = request->bindings[direction][index];
  const std::size_t dim_count = static_cast<std::size_t>(rank);
  if (bound.data == data && data != nullptr && bound.dims.size() == dim_count &&
      std::equal(dims, dims + rank, bound.dims.begin())) {
    return NPU_OK;
  }
  const auto type = to_openvino(dtype);
  if (!type) return fail(NPU_ERROR_ARGUMENT, "OpenVINO has no element type for this dtype");
  std::vector<std::int64_t> shape(dims, dims + rank);
  // An empty tensor may have no address, and OpenVINO refuses a null one.
  static std::int64_t nothing[2] = {0, 0};
  ov_tensor_t* tensor = nullptr;
  NPU_OV(ov_tensor_create_from_host_ptr, *type, ov_shape_t{rank, shape.data()},
         data != nullptr ? data : nothing, &tensor);
  const Owned<ov_tensor_t> owned{tensor, api.ov_tensor_free};
  bound = {};  // a refused bind leaves OpenVINO's side unknown
  if (direction == NPU_INPUT) {
    NPU_OV(ov_infer_request_set_input_tensor_by_index, request->infer, index, tensor);
  } else {
    NPU_OV(ov_infer_request_set_output_tensor_by_index, request->infer, index, tensor);
  }
  bound = {data, std::move(shape)};
  return NPU_OK;
}

npu_status infer(npu_request* request) {
  NPU_OV(ov_infer_request_infer, request->infer);
  return NPU_OK;
}

npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context) {
  if (done == nullptr) {
    stream->queue.wait();
    return infer(request);
  }
  stream->queue.push([request, done, context] {
    const npu_status status = infer(request);
    done(context, status, status == NPU_OK ? "" : last_error());
  });
  return NPU_OK;
}

npu_status memory_copy(npu_stream* stream, void* to, const void* from, std::size_t size_bytes,
                       npu_done done, void* context) {
  if (done == nullptr) {
    stream->queue.wait();
    std::memmove(to, from, size_bytes);
    return NPU_OK;
  }
  stream->queue.push([=] {
    std::memmove(to, from, size_bytes);
    done(context, NPU_OK, "");
  });
  return NPU_OK;
}

npu_status request_layers(npu_request* request, npu_layer_record* records, std::size_t capacity,
                          std::size_t* count) {
  ov_profiling_info_list_t list{};
  if (api.ov_infer_request_get_profiling_info(request->infer, &list) != OK) {
    return fail(NPU_ERROR_UNSUPPORTED,
                "the program was loaded without profiling, or has not run yet");
  }
  *count = list.size;
  for (std::size_t i = 0; i < std::min(capacity, list.size); ++i) {
    const ov_profiling_info_t& info = list.profiling_infos[i];
    npu_layer_record& record = records[i];
    record = {};
    copy_text(record.name, sizeof(record.name), info.node_name);
    copy_text(record.type, sizeof(record.type), info.node_type);
    copy_text(record.implementation, sizeof(record.implementation), info.exec_type);
    record.duration_us = info.status == ov_profiling_info_t::EXECUTED ? info.real_time : 0;
  }
  api.ov_profiling_info_list_free(&list);
  return NPU_OK;
}

npu_status request_output(npu_request* request, std::size_t index, npu_port* port,
                          const void** data) {
  *port = {};
  ov_tensor_t* tensor = nullptr;
  NPU_OV(ov_infer_request_get_output_tensor_by_index, request->infer, index, &tensor);
  const Owned<ov_tensor_t> owned{tensor, api.ov_tensor_free};
  ov_element_type_e type = DYNAMIC;
  NPU_OV(ov_tensor_get_element_type, tensor, &type);
  port->dtype = from_openvino(type);
  ov_shape_t shape{};
  NPU_OV(ov_tensor_get_shape, tensor, &shape);
  port->rank = static_cast<std::int32_t>(shape.rank);
  const bool fits = shape.rank <= NPU_MAX_RANK;
  if (fits) std::copy(shape.dims, shape.dims + shape.rank, port->dims);
  api.ov_shape_free(&shape);
  if (!fits) return fail(NPU_ERROR_UNSUPPORTED, "an output has a rank above the limit");
  void* address = nullptr;
  std::size_t bytes = 0;
  NPU_OV(ov_tensor_get_byte_size, tensor, &bytes);
  if (bytes != 0) NPU_OV(ov_tensor_data, tensor, &address);
  *data = address;
  return NPU_OK;
}

constexpr npu_driver kTable{
    .abi_version = NPU_DRIVER_ABI_VERSION,
    .name = "openvino",
    .last_error = last_error,
    .open = open_driver,
    .choice_reason = choice_reason,
    .device_count = device_count,
    .device_properties = device_properties,
    .memory_attach = memory_attach,
    .memory_commit = memory_commit,
    .memory_decommit = memory_decommit,
    .host_access_begin = nullptr,
    .host_access_end = nullptr,
    .memory_copy = memory_copy,
    .stream_create = driver::host_stream_create,
    .stream_destroy = driver::host_stream_destroy,
    .stream_query = driver::host_stream_query,
    .stream_synchronize = driver::host_stream_synchronize,
    .stream_wait_event = driver::host_stream_wait_event,
    .event_create = driver::host_event_create,
    .event_destroy = driver::host_event_destroy,
    .event_record = driver::host_event_record,
    .event_query = driver::host_event_query,
    .event_synchronize = driver::host_event_synchronize,
    .event_time_ns = driver::host_event_time_ns,
    .program_load = program_load,
    .program_unload = program_unload,
    .program_port_count = program_port_count,
    .program_port = program_port,
    .program_property = program_property,
    .request_create = request_create,
    .request_destroy = request_destroy,
    .request_bind = request_bind,
    .request_run = request_run,
    .request_output = request_output,
    .request_layers = request_layers,
};

}  // namespace

const npu_driver* driver_table() noexcept {
  return &kTable;
}

}  // namespace npu::openvino
