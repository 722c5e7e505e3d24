// Opens the driver once, on the first use of a device. The built-in drivers are beside this file.
#include "driver/choice.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <utility>

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
  std::atomic<bool> is_open{false};
};

Choice& choice() {
  static auto* instance =
      new Choice;  // outlives every static destructor that may still free memory
  return *instance;
}

const char* or_null(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

// The table of a vendor's library, or nullptr with the reason in `error`.
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

// Opens a driver; an empty text when it serves, else why it does not.
std::string open_table(const npu_driver& candidate, const Settings& settings) {
  if (candidate.abi_version != NPU_DRIVER_ABI_VERSION) {
    return std::string("driver ABI ") + std::to_string(candidate.abi_version) +
           ", this runtime needs " + std::to_string(NPU_DRIVER_ABI_VERSION);
  }
  if (candidate.open(or_null(settings.openvino_library), or_null(settings.device)) != NPU_OK) {
    return candidate.last_error();
  }
  const auto [begin, size_bytes] = memory::arena_range();
  if (begin == nullptr) return "no range of addresses could be reserved for device memory";
  if (candidate.memory_attach(begin, size_bytes) != NPU_OK) return candidate.last_error();
  return {};
}

void try_open(Choice& state, const std::string& name, const npu_driver* candidate,
              std::string problem) {
  if (candidate != nullptr) problem = open_table(*candidate, state.settings);
  if (problem.empty()) {
    state.table = candidate;
  } else {
    state.error +=
        (state.error.empty() ? "" : "; ") + (name == "openvino" ? "" : name + ": ") + problem;
  }
}

void open(Choice& state) {
  const std::string& wanted = state.settings.driver;
  bool is_known = false;
  const auto is_wanted = [&](const std::string& name, bool by_default) {
    if (state.table != nullptr) return false;
    is_known |= name == wanted;
    return wanted.empty() ? by_default : name == wanted;
  };
  for (const VendorDriver& vendor : state.settings.vendors) {
    if (!is_wanted(vendor.name, true)) continue;
    std::string problem;
    const npu_driver* candidate = load_vendor(vendor, problem);
    try_open(state, vendor.name, candidate, problem);
  }
  if (is_wanted("openvino", true)) try_open(state, "openvino", openvino::driver_table(), {});
  if (is_wanted("sim", false)) try_open(state, "sim", sim::driver_table(), {});
  if (state.table == nullptr && !wanted.empty() && !is_known) {
    state.error =
        "NPU_DRIVER=" + wanted + " was asked for, and these drivers are installed: openvino, sim";
    for (const VendorDriver& vendor : state.settings.vendors)
      state.error += ", " + vendor.name;
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

const npu_driver* table_or_null() noexcept {
  Choice& state = choice();
  std::call_once(state.once, [&state] { open(state); });
  return state.table;
}

bool is_open() noexcept {
  return choice().is_open.load();
}

std::string open_error() {
  table_or_null();
  return choice().error;
}

const npu_driver& table() {
  if (const npu_driver* found = table_or_null()) return *found;
  throw Error(ErrorKind::kDevice, "device-absent",
              "npu: no device can serve: " + choice().error +
                  ". Choose one that is there with NPU_DEVICE, or run \"npu-runtime info\".");
}

}  // namespace npu::driver
