// Requests of the OpenVINO driver: binding memory, running, outputs and layer times.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "driver/host_streams.h"
#include "driver/openvino_parts.h"

namespace npu::openvino {

// Bound memory of a request's ports, so that binding the same memory again is free. An NPU's plugin
// locks a memory binding until the end of a run, and would keep freed memory of a request that
// never runs: so memory is passed when the request runs.
struct Binding {
  void* data = nullptr;
  std::vector<std::int64_t> dims;
  bool is_bound = false;
  bool is_told = false;
  std::uint64_t import = 0;  // import of the memory when it was passed to OpenVINO
};

}  // namespace npu::openvino

struct npu_request {
  const npu_program* program = nullptr;
  ov_infer_request_t* infer = nullptr;
  std::vector<npu::openvino::Binding> bindings[2];  // by npu_direction
};

namespace npu::openvino {

namespace {

std::string shape_text(std::int32_t rank, const std::int64_t* dims) {
  std::string text = "(";
  for (std::int32_t i = 0; i < rank; ++i)
    text += (i == 0 ? "" : ", ") + (dims[i] < 0 ? std::string("?") : std::to_string(dims[i]));
  return text + ")";
}

bool fits(const npu_port& port, npu_dtype dtype, std::int32_t rank, const std::int64_t* dims) {
  if (dtype != port.dtype) return false;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return false;
    if (port.rank >= 0 && port.dims[i] != NPU_DIM_DYNAMIC && port.dims[i] != dims[i]) return false;
  }
  return true;
}

// Reports errors that OpenVINO would report without the values.
npu_status check_binding(const npu_port& port, npu_dtype dtype, std::int32_t rank,
                         const std::int64_t* dims, const void* data) {
  if (rank < 0 || rank > NPU_MAX_RANK || (port.rank >= 0 && rank != port.rank)) {
    return fail(NPU_ERROR_ARGUMENT, "request_bind: rank " + std::to_string(rank) +
                                        " must be the rank of port " + std::string(port.name) +
                                        ", " + std::to_string(port.rank));
  }
  const bool is_empty = std::find(dims, dims + rank, 0) != dims + rank;
  if (data == nullptr && !is_empty) {
    return fail(NPU_ERROR_ARGUMENT,
                "request_bind: port " + std::string(port.name) + " needs memory, got NULL");
  }
  if (fits(port, dtype, rank, dims)) return NPU_OK;
  return fail(NPU_ERROR_ARGUMENT, "request_bind: port " + std::string(port.name) +
                                      " takes npu_dtype " + std::to_string(port.dtype) + " " +
                                      shape_text(port.rank, port.dims) + ", got " +
                                      std::to_string(dtype) + " " + shape_text(rank, dims));
}

ov_status_e set_tensor(npu_request* request, npu_direction direction, std::size_t index,
                       const ov_tensor_t* tensor) {
  return direction == NPU_INPUT
             ? device.api.ov_infer_request_set_input_tensor_by_index(request->infer, index, tensor)
             : device.api.ov_infer_request_set_output_tensor_by_index(request->infer, index,
                                                                      tensor);
}

// The sizes in OpenVINO's units; see is_half_byte.
std::vector<std::int64_t> whole_dims(const Binding& bound, ov_element_type_e type) {
  std::vector<std::int64_t> dims = bound.dims;
  if (is_half_byte(type)) dims.back() *= 2;
  return dims;
}

// Whether OpenVINO already has this memory, which is in `import` now. An NPU's plugin releases
// memory at the end of a run and looks it up again at the next, which fails if it is no longer
// imported.
bool is_known(const Binding& bound, std::uint64_t import) {
  return bound.is_told && (device.context == nullptr || (import != 0 && import == bound.import));
}

npu_status tell(npu_request* request, npu_direction direction, std::size_t index) {
  Binding& bound = request->bindings[direction][index];
  if (!bound.is_bound) return NPU_OK;
  const std::uint64_t import = device.context == nullptr ? 0 : import_around(bound.data);
  if (is_known(bound, import)) return NPU_OK;
  bound.is_told = false;
  const ov_element_type_e type = request->program->types[direction][index];
  std::vector<std::int64_t> dims = whole_dims(bound, type);
  // An empty tensor may have no address, and OpenVINO refuses a null one.
  static std::int64_t nothing[2] = {0, 0};
  ov_tensor_t* tensor = nullptr;
  NPU_OV(ov_tensor_create_from_host_ptr, type,
         ov_shape_t{static_cast<std::int64_t>(dims.size()), dims.data()},
         bound.data != nullptr ? bound.data : nothing, &tensor);
  const Owned<ov_tensor_t> owned{tensor, device.api.ov_tensor_free};
  if (const ov_status_e status = set_tensor(request, direction, index, tensor); status != OK) {
    return fail_call(direction == NPU_INPUT ? "ov_infer_request_set_input_tensor_by_index"
                                            : "ov_infer_request_set_output_tensor_by_index",
                     status);
  }
  bound.is_told = true;
  bound.import = import;
  return NPU_OK;
}

npu_status tell_all(npu_request* request) {
  for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT}) {
    for (std::size_t i = 0; i < request->bindings[direction].size(); ++i)
      NPU_TRY(tell(request, direction, i));
  }
  return NPU_OK;
}

// Resets OpenVINO's bindings after a failed run: the next run binds again.
void untell_all(npu_request* request) {
  for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT}) {
    for (std::size_t i = 0; i < request->bindings[direction].size(); ++i) {
      Binding& bound = request->bindings[direction][i];
      if (!std::exchange(bound.is_told, false)) continue;
      const ov_element_type_e type = request->program->types[direction][i];
      std::vector<std::int64_t> dims = whole_dims(bound, type);
      ov_tensor_t* tensor = nullptr;
      const ov_shape_t shape{static_cast<std::int64_t>(dims.size()), dims.data()};
      if (device.api.ov_tensor_create(type, shape, &tensor) != OK) continue;
      const Owned<ov_tensor_t> owned{tensor, device.api.ov_tensor_free};
      set_tensor(request, direction, i, tensor);
    }
  }
}

npu_status run_told(npu_request* request) {
  NPU_TRY(tell_all(request));
  NPU_OV(ov_infer_request_infer, request->infer);
  return NPU_OK;
}

npu_status infer(npu_request* request) {
  if (const npu_status status = run_told(request); status != NPU_OK) {
    if (device.context != nullptr) untell_all(request);
    return status;
  }
  request->program->means.runs.fetch_add(1, std::memory_order_relaxed);
  return NPU_OK;
}

// Time of a layer per run since the previous report, from means over all runs.
void take_latest(LayerMeans& means, const ov_profiling_info_list_t& list) {
  const std::lock_guard lock(means.mutex);
  const std::int64_t runs = means.runs.load(std::memory_order_relaxed);
  const std::int64_t since = runs - means.looked_at;
  if (since <= 0 && means.latest.size() == list.size) return;
  means.totals.resize(list.size);
  means.latest.resize(list.size);
  for (std::size_t i = 0; i < list.size; ++i) {
    const ov_profiling_info_t& info = list.profiling_infos[i];
    const std::int64_t mean = info.status == ov_profiling_info_t::EXECUTED ? info.real_time : 0;
    const std::int64_t total = mean * runs;
    // Means are whole microseconds: the difference may be wrong by the number of runs.
    means.latest[i] =
        since == 0 ? mean : std::max<std::int64_t>((total - means.totals[i]) / since, 0);
    means.totals[i] = total;
  }
  means.looked_at = runs;
}

// Keeps the sizes of the inputs, for layer_shapes.
void note_sizes(const npu_request* request) {
  LayerShapes& shapes = request->program->shapes;
  const std::lock_guard lock(shapes.mutex);
  shapes.wanted.clear();
  for (const Binding& bound : request->bindings[NPU_INPUT])
    shapes.wanted.push_back(bound.dims);
}

}  // namespace

npu_status request_create(npu_program* program, npu_request** request) {
  ov_infer_request_t* infer = nullptr;
  NPU_OV(ov_compiled_model_create_infer_request, program->compiled, &infer);
  auto created = std::make_unique<npu_request>();
  created->program = program;
  created->infer = infer;
  for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT})
    created->bindings[direction].resize(program->ports[direction].size());
  *request = created.release();
  return NPU_OK;
}

void request_destroy(npu_request* request) {
  device.api.ov_infer_request_free(request->infer);
  delete request;
}

npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data) {
  NPU_TRY(check_port("request_bind", request->program, direction, index));
  NPU_TRY(check_binding(request->program->ports[direction][index], dtype, rank, dims, data));
  Binding& bound = request->bindings[direction][index];
  const std::size_t dim_count = static_cast<std::size_t>(rank);
  if (bound.is_bound && bound.data == data && bound.dims.size() == dim_count &&
      std::equal(dims, dims + rank, bound.dims.begin())) {
    return NPU_OK;
  }
  bound = {.data = data, .dims = {dims, dims + rank}, .is_bound = true};
  return device.context == nullptr ? tell(request, direction, index) : NPU_OK;
}

npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context) {
  if (done == nullptr) {
    stream->queue.wait();
    return infer(request);
  }
  stream->queue.push([request, done, context] {
    const npu_status status = infer(request);
    done(context, status, status == NPU_OK ? "" : driver::last_error());
  });
  return NPU_OK;
}

npu_status request_layers(npu_request* request, npu_layer_record* records, std::size_t capacity,
                          std::size_t* count) {
  ov_profiling_info_list_t list{};
  if (!request->program->has_layers) {
    return fail(NPU_ERROR_UNSUPPORTED, "request_layers: the program was loaded without profiling");
  }
  if (device.api.ov_infer_request_get_profiling_info(request->infer, &list) != OK) {
    return fail(NPU_ERROR_UNSUPPORTED,
                "ov_infer_request_get_profiling_info: the request has not run yet");
  }
  *count = list.size;
  note_sizes(request);
  LayerMeans& means = request->program->means;
  const bool has_means = device.name == "CPU";
  if (has_means && capacity >= list.size) take_latest(means, list);
  for (std::size_t i = 0; i < std::min(capacity, list.size); ++i) {
    const ov_profiling_info_t& info = list.profiling_infos[i];
    npu_layer_record& record = records[i];
    record = {};
    copy_text(record.name, sizeof(record.name), info.node_name);
    copy_text(record.type, sizeof(record.type), info.node_type);
    copy_text(record.implementation, sizeof(record.implementation), info.exec_type);
    record.duration_us = info.status == ov_profiling_info_t::EXECUTED ? info.real_time : 0;
    if (has_means && capacity >= list.size) record.duration_us = means.latest[i];
  }
  device.api.ov_profiling_info_list_free(&list);
  return NPU_OK;
}

npu_status request_output(npu_request* request, std::size_t index, npu_port* port,
                          const void** data) {
  NPU_TRY(check_port("request_output", request->program, NPU_OUTPUT, index));
  *port = {};
  ov_tensor_t* tensor = nullptr;
  NPU_OV(ov_infer_request_get_output_tensor_by_index, request->infer, index, &tensor);
  const Owned<ov_tensor_t> owned{tensor, device.api.ov_tensor_free};
  ov_element_type_e type = DYNAMIC;
  NPU_OV(ov_tensor_get_element_type, tensor, &type);
  port->dtype = from_openvino(type);
  ov_shape_t shape{};
  NPU_OV(ov_tensor_get_shape, tensor, &shape);
  port->rank = static_cast<std::int32_t>(shape.rank);
  const bool fits = shape.rank <= NPU_MAX_RANK;
  if (fits) std::copy(shape.dims, shape.dims + shape.rank, port->dims);
  device.api.ov_shape_free(&shape);
  if (!fits) return fail(NPU_ERROR_UNSUPPORTED, "request_output: the rank is above the limit");
  void* address = nullptr;
  std::size_t bytes = 0;
  NPU_OV(ov_tensor_get_byte_size, tensor, &bytes);
  if (bytes != 0) NPU_OV(ov_tensor_data, tensor, &address);
  *data = address;
  return NPU_OK;
}

}  // namespace npu::openvino
