// The open device, and the translation of OpenVINO's errors and element types.
#include "driver/openvino_parts.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

bool is_half_byte(ov_element_type_e type) {
  return type == I4 || type == U4;
}

npu_dtype from_openvino(ov_element_type_e type) {
  if (is_half_byte(type)) return NPU_DTYPE_UINT8;
  for (const auto& [ours, theirs] : kDtypes) {
    if (theirs == type) return ours;
  }
  return NPU_DTYPE_INVALID;
}

}  // namespace npu::openvino
