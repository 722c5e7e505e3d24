// Captured graphs, the sanitizer, launch blocking and the simulated device in Python. Streams and
// events are torch's classes, which use the device guard.
#include "python/streams.h"

#include "driver/sim_faults.h"
#include "driver/sim_flips.h"
#include "graph/graph.h"
#include "npu/device.h"
#include "npu/stream.h"
#include "npu/sync_debug.h"
#include "stream/sanitizer.h"
#include "stream/stream_state.h"

namespace npu::python {

void bind_streams(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<Graph, std::shared_ptr<Graph>>(module, "Graph")
      .def(py::init([](bool follows_weights) {
             return std::make_shared<Graph>(follows_weights ? Weights::kFollow : Weights::kRefuse);
           }),
           py::arg("follows_weights") = false)
      .def("pause", &Graph::pause)
      .def("resume", &Graph::resume)
      .def_property_readonly("follows_weights", &Graph::follows_weights)
      .def("depends_on", &Graph::depends_on)
      .def("capture_begin", &Graph::capture_begin)
      .def("capture_end", &Graph::capture_end)
      .def("pool", &Graph::pool)
      .def("describe", &Graph::describe)
      .def("replay", &Graph::replay, Release())
      .def("reset", &Graph::reset, Release())
      .def("__len__", &Graph::size);
  module.def("is_capturing", &is_capturing);
  module.def("capturing_graph", &Graph::capturing, py::return_value_policy::reference);

  module.def(
      "drain",
      [] {
        for (c10::DeviceIndex i = 0; i < device_count(); ++i)
          stream::drain_device(i);
      },
      Release());
  module.def("set_sanitizer", &sanitizer::set_enabled);
  module.def("set_sync_debug_mode",
             [](int mode) { detail::sync_debug_mode.store(static_cast<SyncDebugMode>(mode)); });
  module.def("sync_debug_mode", [] { return static_cast<int>(detail::sync_debug_mode.load()); });
  module.def("find_stream", &find_stream);

  module.def("sim_set_delay", &sim::set_delay);
  module.def("sim_inject_failure",
             [](std::string call, int status, std::int64_t skip, std::int64_t times) {
               sim::inject_failure(std::move(call), static_cast<npu_status>(status), skip, times);
             });
  module.def("sim_clear", &sim::clear);
  module.def("sim_begin_flips", &sim::begin_flips);
  module.def("sim_end_flips", &sim::end_flips);
  module.def("sim_flip_report", [] {
    const sim::FlipReport report = sim::flip_report();
    py::list flips;
    for (const sim::Flip& flip : report.flips) {
      flips.append(py::make_tuple(flip.run, flip.program, flip.output, flip.element, flip.bit,
                                  flip.before, flip.after));
    }
    return py::make_tuple(report.runs, flips);
  });
}

}  // namespace npu::python
