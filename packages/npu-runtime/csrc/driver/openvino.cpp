// The OpenVINO driver's table. Common parts are in openvino_parts.cpp, devices in
// openvino_devices.cpp, memory in openvino_imports.cpp, compiled models in openvino_programs.cpp,
// their runs in openvino_requests.cpp; loading the library and checking it is in openvino_api.cpp.
#include "driver/openvino.h"

#include "driver/host_memory.h"
#include "driver/host_streams.h"
#include "driver/openvino_parts.h"

namespace npu::openvino {

namespace {

npu_driver make_table() {
  npu_driver table{};
  driver::fill_host_streams(table);
  table.abi_version = NPU_DRIVER_ABI_VERSION;
  table.name = "openvino";
  table.last_error = driver::last_error;
  table.open = open_driver;
  table.choice_reason = choice_reason;
  table.device_count = driver::host_device_count;
  table.device_properties = device_properties;
  table.memory_attach = driver::host_memory_attach;
  table.memory_commit = memory_commit;
  table.memory_decommit = memory_decommit;
  table.memory_copy = driver::host_memory_copy;
  table.program_load = program_load;
  table.program_unload = program_unload;
  table.program_port_count = program_port_count;
  table.program_port = program_port;
  table.program_property = program_property;
  table.request_create = request_create;
  table.request_destroy = request_destroy;
  table.request_bind = request_bind;
  table.request_run = request_run;
  table.request_output = request_output;
  table.request_layers = request_layers;
  return table;
}

}  // namespace

const npu_driver* driver_table() noexcept {
  static const npu_driver table = make_table();
  return &table;
}

}  // namespace npu::openvino
