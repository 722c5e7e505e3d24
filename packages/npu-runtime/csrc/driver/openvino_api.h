// The functions of OpenVINO's C library that the driver calls, resolved at run time: a link would
// pin the wheel to one exact OpenVINO release.
#pragma once

#include <string>

#include <openvino/c/openvino.h>

namespace npu::openvino {

#define NPU_OPENVINO_FUNCTIONS(X)                \
  X(ov_available_devices_free)                   \
  X(ov_compiled_model_create_infer_request)      \
  X(ov_compiled_model_free)                      \
  X(ov_compiled_model_get_property)              \
  X(ov_compiled_model_get_runtime_model)         \
  X(ov_compiled_model_input_by_index)            \
  X(ov_compiled_model_inputs_size)               \
  X(ov_compiled_model_output_by_index)           \
  X(ov_compiled_model_outputs_size)              \
  X(ov_const_port_get_shape)                     \
  X(ov_core_compile_model_from_file_props)       \
  X(ov_core_compile_model_props)                 \
  X(ov_core_create)                              \
  X(ov_core_get_available_devices)               \
  X(ov_core_get_default_context)                 \
  X(ov_core_get_property)                        \
  X(ov_core_import_model)                        \
  X(ov_core_read_model_from_memory_buffer)       \
  X(ov_core_set_property)                        \
  X(ov_free)                                     \
  X(ov_get_error_info)                           \
  X(ov_get_last_err_msg)                         \
  X(ov_get_openvino_version)                     \
  X(ov_infer_request_free)                       \
  X(ov_infer_request_get_output_tensor_by_index) \
  X(ov_infer_request_get_profiling_info)         \
  X(ov_infer_request_infer)                      \
  X(ov_infer_request_set_input_tensor_by_index)  \
  X(ov_infer_request_set_output_tensor_by_index) \
  X(ov_model_free)                               \
  X(ov_output_const_port_free)                   \
  X(ov_partial_shape_free)                       \
  X(ov_profiling_info_list_free)                 \
  X(ov_port_get_any_name)                        \
  X(ov_port_get_element_type)                    \
  X(ov_port_get_partial_shape)                   \
  X(ov_remote_context_create_tensor)             \
  X(ov_shape_free)                               \
  X(ov_tensor_create)                            \
  X(ov_tensor_create_from_host_ptr)              \
  X(ov_tensor_data)                              \
  X(ov_tensor_free)                              \
  X(ov_tensor_get_byte_size)                     \
  X(ov_tensor_get_element_type)                  \
  X(ov_tensor_get_shape)                         \
  X(ov_version_free)

struct Api {
#define NPU_DECLARE(name) decltype(&::name) name = nullptr;
  NPU_OPENVINO_FUNCTIONS(NPU_DECLARE)
#undef NPU_DECLARE
  void* library = nullptr;  // dlopen's handle
};

// Loads `library` and fills `api`. Returns an empty string, or the error.
std::string load_api(const char* library, Api& api);

}  // namespace npu::openvino
