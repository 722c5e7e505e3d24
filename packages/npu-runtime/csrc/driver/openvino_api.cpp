// Loads OpenVINO's C library and checks that its enum values match the headers.
#include "driver/openvino_api.h"

#include <dlfcn.h>

namespace npu::openvino {

namespace {

// Element types are plain numbers in the ABI, and OpenVINO has inserted new ones in the middle
// before. The size of a one-element tensor shows for each type whether the number still matches.
std::string check_element_types(const Api& api) {
  struct Expected {
    ov_element_type_e type;
    std::size_t bytes;
  };
  constexpr Expected kExpected[] = {{BOOLEAN, 1}, {BF16, 2}, {F16, 2}, {F32, 4}, {F64, 8},
                                    {I8, 1},      {I16, 2},  {I32, 4}, {I64, 8}, {U8, 1}};
  std::int64_t one = 1;
  const ov_shape_t shape{1, &one};
  for (const auto& [type, bytes] : kExpected) {
    ov_tensor_t* tensor = nullptr;
    if (api.ov_tensor_create(type, shape, &tensor) != OK) {
      return "ov_tensor_create refuses element type " + std::to_string(static_cast<unsigned>(type));
    }
    std::size_t actual = 0;
    api.ov_tensor_get_byte_size(tensor, &actual);
    api.ov_tensor_free(tensor);
    if (actual != bytes) {
      return "element type " + std::to_string(static_cast<unsigned>(type)) + " has " +
             std::to_string(actual) + " bytes, expected " + std::to_string(bytes);
    }
  }
  return {};
}

}  // namespace

std::string load_api(const char* library, Api& api) {
  // Never closed: plugins leave threads and static objects that outlive any owner here.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return reason != nullptr ? reason : "dlopen failed";
  }
  api.library = handle;
#define NPU_RESOLVE(name)                                                \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, #name)); \
  if (api.name == nullptr) return std::string(library) + " has no function " #name;
  NPU_OPENVINO_FUNCTIONS(NPU_RESOLVE)
#undef NPU_RESOLVE
  if (const std::string mismatch = check_element_types(api); !mismatch.empty()) {
    return std::string(library) +
           " does not match the headers this wheel was built with: " + mismatch;
  }
  return {};
}

}  // namespace npu::openvino
