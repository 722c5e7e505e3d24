// Common parts of the OpenVINO driver: the loaded library, the open device, conversion of
// OpenVINO's errors and element types, and the functions of the table, by file.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver/host_device.h"
#include "driver/openvino_api.h"
#include "npu/driver.h"

namespace npu::openvino {

// OpenVINO's CPU plugin reports the mean time of each layer over all runs of the program so far.
// The time of the runs since the previous report is the difference of two reports.
struct LayerMeans {
  std::atomic<std::int64_t> runs{0};  // of all requests: they share the plugin's counters
  std::mutex mutex;
  std::int64_t looked_at = 0;        // runs at the previous report
  std::vector<std::int64_t> totals;  // microseconds until then, by layer
  std::vector<std::int64_t> latest;  // reported values then, by layer
};

// The latest inputs and outputs of layers. Reading takes 10 to 40 us for each node of the executed
// model (2026-11), so it is not done in each reported run.
struct LayerShapes {
  std::mutex mutex;
  std::vector<std::vector<std::int64_t>> wanted;  // input sizes of the reported run
  std::vector<std::vector<std::int64_t>> read;    // and of the run that `text` is of
  std::string text;
  std::int64_t reads = 0;
  std::chrono::steady_clock::time_point read_at;
  std::chrono::steady_clock::duration cost{};
};

}  // namespace npu::openvino

struct npu_program {
  ov_compiled_model_t* compiled = nullptr;
  std::vector<npu_port> ports[2];           // by npu_direction
  std::vector<ov_element_type_e> types[2];  // OpenVINO's types of the ports
  bool has_layers = true;                   // whether its runs record layers
  bool is_imported = false;                 // from a blob, without compiling
  mutable npu::openvino::LayerMeans means;
  mutable npu::openvino::LayerShapes shapes;
};

namespace npu::openvino {

using driver::copy_text;
using driver::fail;

struct OpenDevice {
  Api api;
  ov_core_t* core = nullptr;
  ov_remote_context_t* context = nullptr;  // where memory is imported; otherwise null
  std::string name;                        // OpenVINO's, for example "CPU" or "NPU"
  std::string reason;                      // reason for the selection
};

// The one device of this process; filled by open_driver.
extern OpenDevice device;

// Returns OpenVINO's message, with the failing call.
npu_status fail_call(const char* call, ov_status_e status);

#define NPU_OV(name, ...)                                                          \
  do {                                                                             \
    if (const ov_status_e status_ = device.api.name(__VA_ARGS__); status_ != OK) { \
      return fail_call(#name, status_);                                            \
    }                                                                              \
  } while (false)

#define NPU_TRY(call)                                                         \
  do {                                                                        \
    if (const npu_status status_ = (call); status_ != NPU_OK) return status_; \
  } while (false)

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

npu_dtype from_openvino(ov_element_type_e type);

// Whether two elements share a byte, the first in its lower half. Torch has no such dtype: the port
// is one of bytes, with half the last dimension.
bool is_half_byte(ov_element_type_e type);

// NPU_OK, or the error of `call` for a port that the program does not have.
npu_status check_port(const char* call, const npu_program* program, npu_direction direction,
                      std::size_t index);

// openvino_devices.cpp
npu_status open_driver(const char* vendor_library, const char* requested_device);
const char* choice_reason();
npu_status device_properties(std::int32_t index, npu_device_properties* properties);

// openvino_imports.cpp: ranges of the pool's memory, each imported into the NPU at its first use.
// OpenVINO's plugin uses tensors in imported memory in place. Otherwise it imports whole pages for
// each run, and copies the rest. import_around returns the unique number of the import that
// contains `data`, or 0. Only for a device with a context.
std::uint64_t import_around(const void* data);
npu_status memory_commit(std::int32_t index, void* address, std::size_t size_bytes);
npu_status memory_decommit(std::int32_t index, void* address, std::size_t size_bytes);

// openvino_layer_shapes.cpp: the inputs and outputs of each layer, one line per layer, with their
// sizes in the latest reported run. NPU_ERROR_UNSUPPORTED if these sizes were not read, because
// reading them that often would slow the program down.
npu_status layer_shapes(const npu_program* program, char* value, std::size_t bytes);

// openvino_programs.cpp
npu_status program_load(std::int32_t index, const npu_program_source* source,
                        npu_program** program);
void program_unload(npu_program* program);
npu_status program_port_count(const npu_program* program, npu_direction direction,
                              std::size_t* count);
npu_status program_port(const npu_program* program, npu_direction direction, std::size_t index,
                        npu_port* port);
npu_status program_property(const npu_program* program, const char* key, char* value,
                            std::size_t bytes);

// openvino_requests.cpp
npu_status request_create(npu_program* program, npu_request** request);
void request_destroy(npu_request* request);
npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data);
npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context);
npu_status request_output(npu_request* request, std::size_t index, npu_port* port,
                          const void** data);
npu_status request_layers(npu_request* request, npu_layer_record* records, std::size_t capacity,
                          std::size_t* count);

}  // namespace npu::openvino
