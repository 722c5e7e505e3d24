// The OpenVINO driver's table, and the translation of OpenVINO's errors and element types.
//
// Devices are in openvino_devices.cpp, compiled models in openvino_programs.cpp, their runs in
// openvino_requests.cpp; loading the library and checking it is in openvino_api.cpp.
#include "driver/openvino.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "driver/host_memory.h"
#include "driver/host_streams.h"
#include "driver/openvino_parts.h"

namespace npu::openvino {

OpenDevice device;

namespace {

// OpenVINO's message without the lines that name its own source files, on one line.
std::string sentence(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    const std::size_t end = std::min(message.find('\n'), message.size());
    const std::string_view line = message.substr(0, end);
    if (!line.empty() && !line.starts_with("Exception from ")) {
      if (!text.empty()) text += ' ';
      text += line;
    }
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return text;
}

constexpr std::pair<npu_dtype, ov_element_type_e> kDtypes[] = {
    {NPU_DTYPE_BOOL, BOOLEAN}, {NPU_DTYPE_UINT8, U8},      {NPU_DTYPE_INT8, I8},
    {NPU_DTYPE_INT16, I16},    {NPU_DTYPE_INT32, I32},     {NPU_DTYPE_INT64, I64},
    {NPU_DTYPE_FLOAT16, F16},  {NPU_DTYPE_BFLOAT16, BF16}, {NPU_DTYPE_FLOAT32, F32},
    {NPU_DTYPE_FLOAT64, F64}};

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
  table.memory_commit = driver::host_memory_commit;
  table.memory_decommit = driver::host_memory_decommit;
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

npu_status fail_call(const char* call, ov_status_e status) {
  const char* detail = device.api.ov_get_last_err_msg();
  std::string text = std::string(call) + ": " + device.api.ov_get_error_info(status);
  if (detail != nullptr && *detail != '\0') text += ": " + sentence(detail);
  const npu_status mapped = status == NOT_IMPLEMENTED      ? NPU_ERROR_UNSUPPORTED
                            : status == PARAMETER_MISMATCH ? NPU_ERROR_ARGUMENT
                                                           : NPU_ERROR;
  return fail(mapped, std::move(text));
}

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

const npu_driver* driver_table() noexcept {
  static const npu_driver table = make_table();
  return &table;
}

}  // namespace npu::openvino
