// Programs in Python: thin bindings; npu_runtime/program.py and the library check arguments.
#include "python/program.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "npu/program.h"

namespace npu::python {

namespace {

using Outputs = std::optional<GivenOutputs>;

py::object dtype_object(at::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

// Keeps the owner of the weights while the program lives, on any thread.
std::shared_ptr<void> hold(py::object owner) {
  return {owner.release().ptr(), [](void* object) {
            const auto drop = [](void* held) {
              Py_DECREF(static_cast<PyObject*>(held));
              return 0;
            };
            // The last holder may be a stream's thread, and a thread waiting for that stream may
            // hold the GIL; so the interpreter drops the reference later.
            if (PyGILState_Check() != 0) {
              drop(object);
            } else if (Py_IsInitialized() != 0 && Py_AddPendingCall(drop, object) != 0) {
              const py::gil_scoped_acquire lock;
              drop(object);
            }
          }};
}

std::shared_ptr<Program> load(std::string name, c10::DeviceIndex device_index, std::string path,
                              py::bytes model, std::optional<py::buffer> weights,
                              std::vector<std::pair<std::string, std::string>> options) {
  ProgramSource source{
      .path = std::move(path), .model = std::string(model), .options = std::move(options)};
  if (weights.has_value()) {
    const py::buffer_info view = weights->request();
    source.weights = view.ptr;
    source.weights_bytes = static_cast<std::size_t>(view.size * view.itemsize);
    source.keep_alive = hold(*weights);
  }
  const py::gil_scoped_release unlocked;
  return Program::load(std::move(name), device_index, std::move(source));
}

template <typename Runner>
std::vector<at::Tensor> run(Runner& runner, const std::vector<at::Tensor>& inputs,
                            const Outputs& outputs, c10::Device output_device) {
  return runner.run(inputs, outputs.value_or(GivenOutputs{}), output_device);
}

}  // namespace

void bind_program(py::module_& module) {
  py::class_<Port>(module, "Port")
      .def_readonly("name", &Port::name)
      .def_property_readonly("dtype", [](const Port& port) { return dtype_object(port.dtype); })
      .def_property_readonly("shape",
                             [](const Port& port) { return py::tuple(py::cast(port.shape)); })
      .def("__repr__", [](const Port& port) {
        return "Port(" + port.name + ", " + std::string(c10::toString(port.dtype)) + ", " +
               std::string(py::str(py::tuple(py::cast(port.shape)))) + ")";
      });

  py::class_<LayerRecord>(module, "LayerRecord")
      .def_readonly("name", &LayerRecord::name)
      .def_readonly("type", &LayerRecord::type)
      .def_readonly("implementation", &LayerRecord::implementation)
      .def_readonly("duration_us", &LayerRecord::duration_us);

  py::class_<IndexCheck>(module, "IndexCheck")
      .def(py::init([](std::string what, std::size_t port, bool is_output,
                       std::optional<std::int64_t> size, std::size_t size_port,
                       std::optional<std::int64_t> size_dim, bool is_size_output, bool wraps) {
        return IndexCheck{std::move(what), port,     is_output,      size,
                          size_port,       size_dim, is_size_output, wraps};
      }));

  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Program, std::shared_ptr<Program>>(module, "Program")
      .def_static("load", &load)
      .def_property_readonly("name", &Program::name)
      .def_property_readonly("device", &Program::device_name)
      .def_property_readonly("inputs",
                             [](const Program& p) { return py::tuple(py::cast(p.inputs())); })
      .def_property_readonly("outputs",
                             [](const Program& p) { return py::tuple(py::cast(p.outputs())); })
      .def_property_readonly("compile_time_s",
                             [](const Program& p) { return p.load_duration_ns() * 1e-9; })
      .def_property_readonly("loaded_from_cache", &Program::loaded_from_cache)
      .def("get_property", &Program::property)
      .def("_run", &run<Program>, Release())
      .def("check_indices", &Program::check_indices)
      .def("layers", &Program::layers, Release())
      .def("_session", &Program::session, Release());

  py::class_<Session, std::shared_ptr<Session>>(module, "Session")
      .def_property_readonly("program", &Session::program)
      .def("_run", &run<Session>, Release())
      .def("layers", &Session::layers, Release())
      .def("reset", &Session::reset, Release());
}

}  // namespace npu::python
