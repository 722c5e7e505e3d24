// Events as Python tuples, created in bulk: npu_runtime/observe.py adds their type.
#include "python/observe.h"

#include <unordered_map>

#include "observe/buffer.h"
#include "observe/op_json.h"
#include "observe/op_recorder.h"
#include "program/layer_samples.h"

namespace npu::python {

namespace {

// The Python string of an interned text, or of a key; both live as long as the process.
py::handle string_of(const void* address, const char* text, std::size_t length) {
  static auto* made = new std::unordered_map<const void*, PyObject*>;
  PyObject*& string = (*made)[address];
  if (string == nullptr) {
    // A model's author may choose any bytes as a name.
    string = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), "replace");
    if (string == nullptr) throw py::error_already_set();
  }
  return string;
}

py::handle name_of(const std::string* name) {
  return string_of(name, name->data(), name->size());
}

py::handle key_of(const char* key) {
  return string_of(key, key, std::strlen(key));
}

py::dict args_of(const observe::Record& record) {
  py::dict args;
  for (std::size_t i = 0; i < record.arg_count; ++i) {
    const observe::RecordArg& arg = record.args[i];
    switch (arg.kind) {
      case observe::Arg::Kind::kNumber:
        args[key_of(arg.key)] = py::int_(arg.value);
        break;
      case observe::Arg::Kind::kFlag:
        args[key_of(arg.key)] = py::bool_(arg.value != 0);
        break;
      case observe::Arg::Kind::kText:
        args[key_of(arg.key)] = name_of(arg.text);
        break;
    }
  }
  if (record.device_index >= 0) {
    args[key_of("device_index")] = py::int_(static_cast<int>(record.device_index));
  }
  if (record.stream >= 0) args[key_of("stream")] = py::int_(static_cast<int>(record.stream));
  if (record.is_enqueued) {
    args[key_of("enqueue_thread_id")] = py::int_(record.origin.thread_id);
    args[key_of("enqueue_ns")] = py::int_(record.origin.time_ns);
  }
  return args;
}

// In the order of npu_runtime.observe.Event's fields.
py::tuple event_of(const observe::Record& record) {
  return py::make_tuple(key_of(record.is_span ? "span" : "counter"), name_of(record.category),
                        name_of(record.name), record.start_ns, record.duration_ns, record.thread_id,
                        record.value, args_of(record));
}

py::tuple drain_events() {
  const observe::Drained drained = observe::drain(observe::kPython);
  py::list events(drained.records.size());
  std::size_t index = 0;
  drained.records.each([&](const observe::Record& record) { events[index++] = event_of(record); });
  return py::make_tuple(events, drained.dropped);
}

// The chunk since the last call: text, totals by name, its threads, and the number of dropped ops.
py::tuple drain_ops(observe::OpWriter& writer) {
  std::string text;
  observe::DrainedOps drained;
  {
    const py::gil_scoped_release unlocked;
    drained = observe::drain_ops();
    text = writer.write(drained);
  }
  py::list totals;
  for (const auto& [name, total] : writer.take_totals()) {
    totals.append(py::make_tuple(name_of(name), total.calls, total.self_ns, total.total_ns));
  }
  py::list threads;
  std::size_t events = 0;
  for (const observe::ThreadOps& thread : drained.threads) {
    threads.append(thread.thread_id);
    events += thread.records.size();
  }
  return py::make_tuple(py::bytes(text), totals, threads, events, drained.dropped);
}

}  // namespace

void bind_observe(py::module_& module) {
  module.def("drain_events", &drain_events);
  module.def("set_listening", [](bool is_on) { observe::set_listening(observe::kPython, is_on); });
  module.def("set_kernels_wanted", &observe::set_kernels_wanted);
  module.def("set_layer_sampling", &program::set_layer_sampling);
  module.def("start_ops", &observe::start_ops);
  module.def("stop_ops", &observe::stop_ops);
  py::class_<observe::OpWriter>(module, "OpWriter")
      .def(py::init<std::int64_t, std::int64_t>())
      .def("drain", &drain_ops);
}

}  // namespace npu::python
