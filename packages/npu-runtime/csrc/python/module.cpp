// The extension module: devices, memory, random numbers and events for npu_runtime's Python code.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include "device/default_generators.h"
#include "driver/device_selection.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/generator.h"
#include "npu/process.h"
#include "python/autograd_threads.h"
#include "python/frozen_tensors.h"
#include "python/memory.h"
#include "python/observe.h"
#include "python/program.h"
#include "python/streams.h"
#include "python/views.h"
#include "stream/launch_blocking.h"

namespace npu::python {
namespace {

// Raises the class of npu_runtime.errors for the kind of error.
void raise(const Error& error) {
  const char* name = "NpuError";
  switch (error.kind()) {
    case ErrorKind::kDevice:
      name = "DeviceError";
      break;
    case ErrorKind::kDriver:
      name = "DriverError";
      break;
    case ErrorKind::kProgram:
      name = "ProgramError";
      break;
    case ErrorKind::kInput:
      name = "InputError";
      break;
    case ErrorKind::kIndex:
      name = "IndexRangeError";
      break;
  }
  const py::object type = py::module_::import("npu_runtime.errors").attr(name);
  const py::object instance = type(error.message(), error.code());
  PyErr_SetObject(type.ptr(), instance.ptr());
}

py::dict device_properties(c10::DeviceIndex device_index) {
  check_process();
  check_device(device_index);
  const npu_driver& driver = driver::table();
  npu_device_properties properties{};
  if (driver.device_properties(device_index, &properties) != NPU_OK) {
    throw Error(ErrorKind::kDriver, "driver-call", std::string("npu: ") + driver.last_error());
  }
  py::dict result;
  result["driver"] = driver.name;
  result["device"] = properties.name;
  result["full_name"] = properties.full_name;
  result["driver_version"] = properties.driver_version;
  result["capabilities"] = properties.capabilities;
  result["memory_bytes"] = properties.memory_bytes;
  result["reason"] = driver.choice_reason();
  return result;
}

// Gets the vendors' drivers from Python; returns none on failure.
std::vector<driver::VendorDriver> find_vendors(PyObject* finder) {
  const py::gil_scoped_acquire gil;
  std::vector<driver::VendorDriver> found;
  try {
    for (const py::handle item : py::handle(finder)()) {
      auto [name, library, problem] =
          item.cast<std::tuple<std::string, std::string, std::string>>();
      found.push_back({std::move(name), std::move(library), std::move(problem)});
    }
  } catch (py::error_already_set& error) {  // an interrupt: it has no caller here
    error.discard_as_unraisable("npu: looking for installed drivers");
  }
  return found;
}

void configure(std::string driver, std::string device, std::string openvino_library,
               py::function vendors, bool launch_blocking) {
  // Kept for the life of the process, like the settings: the last thread may end without the GIL.
  PyObject* finder = vendors.release().ptr();
  driver::configure({std::move(driver), std::move(device), std::move(openvino_library),
                     [finder] { return find_vendors(finder); }});
  set_launch_blocking(launch_blocking);
}

// Address of a built-in driver's table, for the conformance test; 0 for an unknown name.
std::uintptr_t driver_table(std::string_view name) {
  return reinterpret_cast<std::uintptr_t>(driver::built_in_table(name));
}

at::Generator generator(c10::DeviceIndex device_index) {
  return default_generator(device_index);
}

// A forked child may no longer use Python's functions; torch's own handler makes the child's first
// tensor on npu call torch.npu._lazy_init again, which raises the error.
void use_device() {
  check_process();
  mark_device_used();
  torch::utils::register_fork_handler_for_device_init(c10::DeviceType::PrivateUse1);
}

// Device guards restore the device in destructors, which must not throw; other callers in a forked
// child get an error.
void set_device_checked(c10::DeviceIndex device_index) {
  check_process();
  set_device(device_index);
}

c10::DeviceIndex exchange_device_checked(c10::DeviceIndex device_index) {
  check_process();
  return exchange_device(device_index);
}

void bind_device(py::module_& module) {
  module.def("configure", &configure);
  module.def("refuse_device", &driver::refuse);
  module.def("is_open", &driver::is_open);
  module.def("use_device", &use_device);
  module.def("check_process", &check_process);
  module.def("is_in_bad_fork", &is_in_bad_fork);
  module.def("driver_table", &driver_table);
  module.def("device_count", &device_count);
  module.def("current_device", &current_device);
  module.def("set_device", &set_device_checked);
  module.def("exchange_device", &exchange_device_checked);
  module.def("synchronize", &synchronize, py::call_guard<py::gil_scoped_release>());
  module.def("device_properties", &device_properties);
  module.def("default_generator", &generator);
  module.def("seed_default_generators", &seed_default_generators);
}

}  // namespace
}  // namespace npu::python

PYBIND11_MODULE(_C, module) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const npu::Error& error) {
      npu::python::raise(error);
    }
  });
  npu::python::bind_device(module);
  npu::python::bind_memory(module);
  npu::python::bind_streams(module);
  npu::python::bind_program(module);
  npu::python::bind_views(module);
  npu::python::bind_frozen_tensors(module);
  npu::python::bind_observe(module);
  module.def("stop_autograd_threads", &npu::python::stop_autograd_threads,
             py::call_guard<py::gil_scoped_release>());
}
