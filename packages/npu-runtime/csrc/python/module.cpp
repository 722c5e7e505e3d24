// The extension module: devices, memory, random numbers and events for npu_runtime's Python code,
// which gives them their public names.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include "device/default_generators.h"
#include "driver/choice.h"
#include "memory/pool.h"
#include "npu/allocator.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/generator.h"
#include "npu/process.h"
#include "observe_buffer.h"
#include "python/autograd_threads.h"
#include "python/program.h"
#include "python/views.h"

namespace npu::python {
namespace {

// Raises the class of npu_runtime.errors that stands for the kind of error.
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
  }
  const py::object type = py::module_::import("npu_runtime.errors").attr(name);
  const py::object instance = type(error.message(), error.code());
  PyErr_SetObject(type.ptr(), instance.ptr());
}

py::dict device_properties(c10::DeviceIndex device_index) {
  synchronize(device_index);  // refuses a device that does not exist
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

py::dict stat_dict(const c10::CachingAllocator::StatArray& array) {
  constexpr const char* kPools[] = {"all", "small_pool", "large_pool"};
  py::dict pools;
  for (std::size_t i = 0; i < array.size(); ++i) {
    py::dict values;
    values["current"] = array[i].current;
    values["peak"] = array[i].peak;
    values["allocated"] = array[i].allocated;
    values["freed"] = array[i].freed;
    pools[kPools[i]] = values;
  }
  return pools;
}

py::dict memory_stats(c10::DeviceIndex device_index) {
  const auto stats = device_allocator()->getDeviceStats(device_index);
  py::dict result;
  result["allocation"] = stat_dict(stats.allocation);
  result["segment"] = stat_dict(stats.segment);
  result["active"] = stat_dict(stats.active);
  result["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  result["reserved_bytes"] = stat_dict(stats.reserved_bytes);
  result["active_bytes"] = stat_dict(stats.active_bytes);
  result["requested_bytes"] = stat_dict(stats.requested_bytes);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  return result;
}

py::tuple drain_events() {
  const observe::Drained drained = observe::drain();
  py::list events;
  for (const auto& event : drained.events) {
    events.append(py::make_tuple(event.is_span, event.category, event.name, event.start_ns,
                                 event.duration_ns, event.thread_id, event.value, event.args_json));
  }
  return py::make_tuple(events, drained.dropped);
}

at::Generator generator(c10::DeviceIndex device_index) {
  return default_generator(device_index);
}

// Use from Python ends in a child that forks off now; torch's own handler makes the child's first
// tensor on npu go through torch.npu._lazy_init again, which says so.
void use_device() {
  check_process();
  mark_device_used();
  torch::utils::register_fork_handler_for_device_init(c10::DeviceType::PrivateUse1);
}

void bind_device(py::module_& module) {
  module.def("use_device", &use_device);
  module.def("check_process", &check_process);
  module.def("is_in_bad_fork", &is_in_bad_fork);
  module.def("configure", &driver::configure);
  module.def("open_error", &driver::open_error);
  module.def("device_count", &device_count);
  module.def("current_device", &current_device);
  module.def("set_device", &set_device);
  module.def("exchange_device", &exchange_device);
  module.def("synchronize", &synchronize, py::call_guard<py::gil_scoped_release>());
  module.def("device_properties", &device_properties);
  module.def("default_generator", &generator);
  module.def("seed_default_generators", &seed_default_generators);
}

void bind_memory(py::module_& module) {
  module.def("memory_stats", &memory_stats);
  module.def("reset_accumulated_memory_stats",
             [](c10::DeviceIndex index) { device_allocator()->resetAccumulatedStats(index); });
  module.def("reset_peak_memory_stats",
             [](c10::DeviceIndex index) { device_allocator()->resetPeakStats(index); });
  module.def("empty_cache", [] { device_allocator()->emptyCache(); });
  module.def("memory_info",
             [](c10::DeviceIndex index) { return device_allocator()->getMemoryInfo(index); });
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
  npu::python::bind_program(module);
  npu::python::bind_views(module);
  module.def("stop_autograd_threads", &npu::python::stop_autograd_threads,
             py::call_guard<py::gil_scoped_release>());
  module.def("drain_events", &npu::python::drain_events);
  module.def("set_listener_count", &npu::observe::set_listener_count);
}
