// Opens the driver once, on the first use of a device. The built-in drivers are in this directory.
#include "driver/device_selection.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "driver/openvino.h"
#include "driver/sim.h"
#include "memory/arena.h"
#include "npu/error.h"
#include "npu/host_access.h"

namespace npu::driver {
namespace {

struct Choice {
  std::once_flag once;
  Settings settings;
  const npu_driver* table = nullptr;
  std::string error;
  std::string refusal_code;  // if not empty, no driver may be opened
  std::string refusal;
  std::atomic<bool> is_decided{false};
  std::atomic<bool> is_open{false};
};

Choice& choice() {
  static auto* instance = new Choice;  // outlives every static destructor that may free memory
  return *instance;
}

const char* or_null(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

// The table of a vendor's library, or nullptr with the cause in `error`.
const npu_driver* load_vendor(const VendorDriver& vendor, std::string& error) {
  void* library = dlopen(vendor.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    error = reason != nullptr ? reason : "dlopen failed";
    return nullptr;
  }
  using TableFunction = const npu_driver* (*)();
  const auto function = reinterpret_cast<TableFunction>(dlsym(library, "npu_driver_table"));
  if (function == nullptr) {
    error = vendor.library + " exports no npu_driver_table";
    return nullptr;
  }
  return function();
}

// Opens a driver; returns an empty text on success, else the reason.
std::string open_table(const npu_driver& candidate, const char* library, const char* device) {
  if (candidate.abi_version != NPU_DRIVER_ABI_VERSION) {
    return std::string("driver ABI ") + std::to_string(candidate.abi_version) +
           ", this runtime needs " + std::to_string(NPU_DRIVER_ABI_VERSION);
  }
  if (candidate.open(library, device) != NPU_OK) {
    return candidate.last_error();
  }
  const auto [begin, size_bytes] = memory::arena_range();
  if (begin == nullptr) return "no range of addresses could be reserved for device memory";
  if (candidate.memory_attach(begin, size_bytes) != NPU_OK) {
    return std::string("memory_attach failed: ") + candidate.last_error();
  }
  return {};
}

void try_open(Choice& state, const std::string& name, const npu_driver* candidate,
              std::string problem) {
  if (candidate != nullptr) {
    // A vendor's driver finds its own software; the built-in ones use OpenVINO.
    const bool is_built_in = built_in_table(name) == candidate;
    problem =
        open_table(*candidate, is_built_in ? or_null(state.settings.openvino_library) : nullptr,
                   or_null(state.settings.device));
  }
  if (problem.empty()) {
    state.table = candidate;
  } else {
    state.error +=
        (state.error.empty() ? "" : "; ") + (name == "openvino" ? "" : name + ": ") + problem;
  }
}

// The installed vendors' drivers; none if a built-in driver is requested.
std::vector<VendorDriver> find_vendors(const Settings& settings) {
  // While drivers are searched, a vendor's module that uses the device gets the built-in drivers.
  static thread_local bool is_looking = false;
  if (is_looking || !settings.find_vendors || built_in_table(settings.driver) != nullptr) return {};
  is_looking = true;
  std::vector<VendorDriver> found = settings.find_vendors();
  is_looking = false;
  return found;
}

void open(Choice& state, const std::vector<VendorDriver>& vendors) {
  const std::string& wanted = state.settings.driver;
  bool is_known = false;
  const auto is_wanted = [&](const std::string& name, bool by_default) {
    if (state.table != nullptr) return false;
    is_known |= name == wanted;
    return wanted.empty() ? by_default : name == wanted;
  };
  for (const VendorDriver& vendor : vendors) {
    if (!is_wanted(vendor.name, true)) continue;
    std::string problem = vendor.problem;
    const npu_driver* candidate = problem.empty() ? load_vendor(vendor, problem) : nullptr;
    try_open(state, vendor.name, candidate, problem);
  }
  for (const char* name : {"openvino", "sim"}) {
    if (is_wanted(name, name == std::string_view("openvino")))
      try_open(state, name, built_in_table(name), {});
  }
  if (state.table == nullptr && !wanted.empty() && !is_known) {
    state.error =
        "NPU_DRIVER=" + wanted + " was requested, but the installed drivers are openvino, sim";
    for (const VendorDriver& vendor : vendors)
      state.error += ", " + vendor.name;
  }
  if (state.table != nullptr && !state.error.empty()) {
    TORCH_WARN("npu: ", state.error, "; the driver ", state.table->name, " serves instead.");
  }
  if (state.table != nullptr && state.table->host_access_begin != nullptr) {
    npu::detail::host_access_level.fetch_add(1);  // never free: every access needs its window
  }
  state.is_open.store(state.table != nullptr);
}

}  // namespace

void configure(Settings settings) {
  choice().settings = std::move(settings);
}

void refuse(std::string code, std::string message) {
  choice().refusal_code = std::move(code);
  choice().refusal = std::move(message);
}

const npu_driver* built_in_table(std::string_view name) noexcept {
  if (name == "openvino") return openvino::driver_table();
  if (name == "sim") return sim::driver_table();
  return nullptr;
}

const npu_driver* table_or_null() noexcept {
  Choice& state = choice();
  if (!state.refusal_code.empty()) return nullptr;
  if (!state.is_decided.load(std::memory_order_acquire)) {
    // Not under the flag: the search runs Python code, and a thread with the GIL may be waiting for
    // the flag.
    const std::vector<VendorDriver> vendors = find_vendors(state.settings);
    std::call_once(state.once, [&] {
      open(state, vendors);
      state.is_decided.store(true, std::memory_order_release);
    });
  }
  return state.table;
}

bool is_open() noexcept {
  return choice().is_open.load();
}

const npu_driver& table() {
  if (const npu_driver* found = table_or_null()) return *found;
  const Choice& state = choice();
  if (!state.refusal_code.empty())
    throw Error(ErrorKind::kInput, state.refusal_code, state.refusal);
  throw Error(ErrorKind::kDevice, "device-absent",
              "npu: no device can serve: " + state.error +
                  ". Choose an existing device with NPU_DEVICE, or run \"npu-runtime info\".");
}

void check_call(npu_status status, const char* call) {
  if (status == NPU_OK) return;
  throw Error(ErrorKind::kDriver, "driver-call",
              std::string("npu: the driver's ") + call + " failed: " + table().last_error() + ".");
}

}  // namespace npu::driver
