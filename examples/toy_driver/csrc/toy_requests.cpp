// Programs and requests: loading, binding memory, running on the stream's thread.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "toy_parts.h"
#include "toy_program.h"
#include "toy_streams.h"

struct npu_program {
  toy::Program program;
  bool has_layers = false;
};

struct npu_request {
  const npu_program* program = nullptr;
  std::vector<toy::Array> arrays;  // one for each value of the program
  std::vector<void*> bound[2];     // by npu_direction
  std::vector<std::int64_t> durations_us;
};

namespace toy {

// --8<-- [start:programs]
std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

npu_status program_load(std::int32_t device, const npu_program_source* source,
                        npu_program** program) {
  if (const auto status = check_device("program_load", device)) return status;
  if ((source->path == nullptr) == (source->model == nullptr))
    return fail(NPU_ERROR_ARGUMENT, "program_load: exactly one of path and model must be set");
  return guarded("program_load", [&] {
    auto loaded = std::make_unique<npu_program>();
    if (source->path != nullptr) {
      const std::string path = source->path;
      const std::string beside = path.substr(0, path.rfind('.')) + ".bin";
      const bool has_weights = access(beside.c_str(), F_OK) == 0;
      loaded->program = parse(read_file(path), has_weights ? read_file(beside) : "");
    } else {
      const auto* weights = static_cast<const char*>(source->weights);
      loaded->program = parse({source->model, source->model_bytes},
                              {weights, weights != nullptr ? source->weights_bytes : 0});
    }
    for (std::size_t i = 0; i < source->option_count; ++i) {
      const std::string key = source->options[i].key;
      const std::string value = source->options[i].value;
      if (key == "PERF_COUNT") loaded->has_layers = value == "YES";
      if (key == "INFERENCE_PRECISION_HINT" && value != "f32")
        return fail(NPU_ERROR_UNSUPPORTED, "program_load: the chip computes in f32, not " + value);
    }
    *program = loaded.release();
    return NPU_OK;
  });
}
// --8<-- [end:programs]

void program_unload(npu_program* program) {
  delete program;
}

npu_status check_port(const char* call, const npu_program* program, npu_direction direction,
                      std::size_t index) {
  if ((direction == NPU_INPUT || direction == NPU_OUTPUT) &&
      index < program->program.ports[direction].size())
    return NPU_OK;
  return fail(NPU_ERROR_ARGUMENT,
              std::string(call) + ": port " + std::to_string(index) + " does not exist");
}

npu_status program_port_count(const npu_program* program, npu_direction direction,
                              std::size_t* count) {
  if (direction != NPU_INPUT && direction != NPU_OUTPUT)
    return fail(NPU_ERROR_ARGUMENT, "program_port_count: a port is an input or an output");
  *count = program->program.ports[direction].size();
  return NPU_OK;
}

void fill_port(const std::string& name, const Dims& dims, npu_port* port) {
  *port = {};
  copy_text(port->name, sizeof(port->name), name);
  port->dtype = NPU_DTYPE_FLOAT32;
  port->rank = static_cast<std::int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), port->dims);
}

npu_status program_port(const npu_program* program, npu_direction direction, std::size_t index,
                        npu_port* port) {
  if (const auto status = check_port("program_port", program, direction, index)) return status;
  const Value& value = program->program.values[program->program.ports[direction][index]];
  fill_port(value.name, value.dims, port);
  return NPU_OK;
}

npu_status program_property(const npu_program*, const char* key, char* value,
                            std::size_t value_bytes) {
  if (std::string(key) != "LOADED_FROM_CACHE")
    return fail(NPU_ERROR_UNSUPPORTED,
                "program_property: there is no property " + std::string(key));
  copy_text(value, value_bytes, "NO");
  return NPU_OK;
}

npu_status request_create(npu_program* program, npu_request** request) {
  return guarded("request_create", [&] {
    auto created = std::make_unique<npu_request>();
    created->program = program;
    for (const Value& value : program->program.values)
      created->arrays.push_back({value.dims, value.start});
    for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT})
      created->bound[direction].resize(program->program.ports[direction].size());
    *request = created.release();
    return NPU_OK;
  });
}

void request_destroy(npu_request* request) {
  delete request;
}

// --8<-- [start:bind]
npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data) {
  const npu_program* program = request->program;
  if (const auto status = check_port("request_bind", program, direction, index)) return status;
  const std::size_t port = program->program.ports[direction][index];
  const Value& value = program->program.values[port];
  bool fits = dtype == NPU_DTYPE_FLOAT32 && rank == static_cast<std::int32_t>(value.dims.size());
  bool is_empty = false;
  for (std::int32_t i = 0; fits && i < rank; ++i) {
    fits = dims[i] >= 0 && (value.dims[i] == kUnknown || value.dims[i] == dims[i]);
    is_empty |= dims[i] == 0;
  }
  if (!fits || (data == nullptr && !is_empty)) {
    return fail(NPU_ERROR_ARGUMENT,
                "request_bind: the dtype, the dims or the address do not fit port " + value.name);
  }
  if (direction == NPU_INPUT) request->arrays[port].dims.assign(dims, dims + rank);
  request->bound[direction][index] = data;
  return NPU_OK;
}
// --8<-- [end:bind]

// --8<-- [start:run]
// One run, on the stream's thread.
npu_status compute(npu_request* request) {
  const Program& program = request->program->program;
  std::vector<Array>& arrays = request->arrays;
  for (std::size_t i = 0; i < program.ports[NPU_INPUT].size(); ++i) {
    Array& input = arrays[program.ports[NPU_INPUT][i]];
    const auto* bound = static_cast<const float*>(request->bound[NPU_INPUT][i]);
    const bool is_known =
        std::find(input.dims.begin(), input.dims.end(), kUnknown) == input.dims.end();
    if (!is_known || (bound == nullptr && element_count(input.dims) != 0))
      return fail(NPU_ERROR_ARGUMENT, "request_run: an input is not bound");
    input.data.assign(bound, bound + element_count(input.dims));
  }
  request->durations_us.clear();
  for (const Layer& layer : program.layers) {
    const std::int64_t start_ns = now_ns();
    compute(layer.op, arrays[layer.left], arrays[layer.right], arrays[layer.result]);
    request->durations_us.push_back((now_ns() - start_ns) / 1000);
  }
  for (const auto& [variable, value] : program.stores)
    arrays[variable].data = arrays[value].data;
  for (std::size_t i = 0; i < program.ports[NPU_OUTPUT].size(); ++i) {
    const Array& output = arrays[program.ports[NPU_OUTPUT][i]];
    void* bound = request->bound[NPU_OUTPUT][i];
    if (bound != nullptr && !output.data.empty())
      std::memcpy(bound, output.data.data(), output.data.size() * sizeof(float));
  }
  return NPU_OK;
}

npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context) {
  return enqueue("request_run", stream, done, context, [request] { return compute(request); });
}
// --8<-- [end:run]

npu_status request_output(npu_request* request, std::size_t index, npu_port* port,
                          const void** data) {
  const npu_program* program = request->program;
  if (const auto status = check_port("request_output", program, NPU_OUTPUT, index)) return status;
  const std::size_t value = program->program.ports[NPU_OUTPUT][index];
  const Array& output = request->arrays[value];
  fill_port(program->program.values[value].name, output.dims, port);
  *data = output.data.data();
  return NPU_OK;
}

npu_status request_layers(npu_request* request, npu_layer_record* records, std::size_t capacity,
                          std::size_t* count) {
  if (!request->program->has_layers)
    return fail(NPU_ERROR_UNSUPPORTED, "request_layers: the program was loaded without PERF_COUNT");
  const Program& program = request->program->program;
  *count = request->durations_us.size();
  for (std::size_t i = 0; i < std::min(capacity, *count); ++i) {
    records[i] = {};
    const Layer& layer = program.layers[i];
    copy_text(records[i].name, sizeof(records[i].name), program.values[layer.result].name);
    copy_text(records[i].type, sizeof(records[i].type), op_name(layer.op));
    copy_text(records[i].implementation, sizeof(records[i].implementation), "toy_loop");
    records[i].duration_us = request->durations_us[i];
  }
  return NPU_OK;
}

}  // namespace toy
