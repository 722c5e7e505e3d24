// Selects OpenVINO devices, and reads their properties. One OpenVINO device is one npu device.
#include <sys/sysinfo.h>

#include <limits>
#include <string_view>
#include <utility>

#include "driver/openvino_parts.h"

namespace npu::openvino {
namespace {

npu_status list_devices(std::vector<std::string>& names) {
  ov_available_devices_t devices{};
  NPU_OV(ov_core_get_available_devices, device.core, &devices);
  for (std::size_t i = 0; i < devices.size; ++i)
    names.emplace_back(devices.devices[i]);
  device.api.ov_available_devices_free(&devices);
  return NPU_OK;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// "NPU" also matches "NPU.0": OpenVINO numbers devices if there are several of a kind.
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
  NPU_TRY(list_devices(names));
  if (requested != nullptr && *requested != '\0') {
    if (!find_device(names, requested, device.name)) {
      return fail(NPU_ERROR_ABSENT, "NPU_DEVICE=" + std::string(requested) +
                                        " was requested, but OpenVINO finds only: " + join(names));
    }
    device.reason = "NPU_DEVICE=" + std::string(requested) + " requests it";
    return NPU_OK;
  }
  if (find_device(names, "NPU", device.name)) {
    device.reason = "OpenVINO finds an NPU on this machine";
    return NPU_OK;
  }
  if (find_device(names, "CPU", device.name)) {
    device.reason =
        "OpenVINO finds no NPU on this machine, so its CPU plugin serves as the npu device";
    return NPU_OK;
  }
  return fail(NPU_ERROR_ABSENT,
              "OpenVINO finds neither an NPU nor its CPU plugin; it finds: " + join(names));
}

// An NPU without a context (older drivers) copies its inputs and outputs.
void open_context() {
  if (!device.name.starts_with("NPU")) return;
  if (device.api.ov_core_get_default_context(device.core, device.name.c_str(), &device.context) !=
      OK)
    device.context = nullptr;
}

npu_status core_property(const char* key, char* value, std::size_t bytes) {
  char* text = nullptr;
  NPU_OV(ov_core_get_property, device.core, device.name.c_str(), key, &text);
  copy_text(value, bytes, text);
  device.api.ov_free(text);
  return NPU_OK;
}

}  // namespace

npu_status open_driver(const char* vendor_library, const char* requested_device) {
  if (vendor_library == nullptr) {
    return fail(NPU_ERROR_ABSENT, "the openvino package is not installed, or has no C library");
  }
  if (std::string problem = load_api(vendor_library, device.api); !problem.empty()) {
    return fail(NPU_ERROR_ABSENT, std::move(problem));
  }
  NPU_OV(ov_core_create, &device.core);
  NPU_TRY(choose_device(requested_device));
  open_context();
  driver::set_host_device_count(1);
  return NPU_OK;
}

const char* choice_reason() {
  return device.reason.c_str();
}

npu_status device_properties(std::int32_t index, npu_device_properties* properties) {
  NPU_TRY(driver::check_device_index("device_properties", index));
  *properties = {};
  copy_text(properties->name, sizeof(properties->name), device.name);
  if (core_property("FULL_DEVICE_NAME", properties->full_name, sizeof(properties->full_name)) !=
      NPU_OK) {
    copy_text(properties->full_name, sizeof(properties->full_name), device.name);
  }
  // Missing on some devices; an empty list then means that the vendor does not report it.
  core_property("OPTIMIZATION_CAPABILITIES", properties->capabilities,
                sizeof(properties->capabilities));
  ov_version_t version{};
  if (device.api.ov_get_openvino_version(&version) == OK) {
    std::string served_by = version.buildNumber;
    device.api.ov_version_free(&version);
    char driver[24] = {};
    // An NPU's compiler is part of its driver: another version gives other programs.
    if (device.name.starts_with("NPU") &&
        core_property("NPU_DRIVER_VERSION", driver, sizeof(driver)) == NPU_OK)
      served_by += std::string("; driver ") + driver;
    copy_text(properties->driver_version, sizeof(properties->driver_version), served_by);
  }
  // The CPU plugin computes on the host's cores: while a program runs, the host could not compute,
  // so a synchronous run loses nothing and saves the hand-over. Other devices work in parallel.
  constexpr std::int64_t kInlineBelowNs = 200'000;
  properties->inline_below_ns =
      device.name == "CPU" ? std::numeric_limits<std::int64_t>::max() : kInlineBelowNs;
  // All devices of this driver use the machine's memory.
  struct sysinfo info{};
  if (sysinfo(&info) == 0) properties->memory_bytes = std::uint64_t{info.totalram} * info.mem_unit;
  return NPU_OK;
}

}  // namespace npu::openvino
