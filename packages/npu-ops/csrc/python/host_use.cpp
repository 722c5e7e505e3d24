// Ops on the host, for Python: counts, and the rule of npu_ops.fallback.
#include "host_use.h"

#include <pybind11/stl.h>

#include <c10/util/Exception.h>

#include "op_plan.h"
#include "python/module.h"

namespace npu::ops::python {
namespace {

// A reference for the life of the process: kernels may call it while the interpreter ends.
PyObject* python_rule = nullptr;

HostUseAnswer ask(const OpPlan& plan) {
  if (Py_IsInitialized() == 0) return {.is_final = true, .refusal = std::nullopt};
  const py::gil_scoped_acquire lock;
  try {
    const auto answer = py::reinterpret_borrow<py::function>(python_rule)(plan.name);
    const auto [is_final, refusal] = answer.cast<std::pair<bool, std::optional<std::string>>>();
    return {.is_final = is_final, .refusal = refusal};
  } catch (const py::error_already_set& error) {
    TORCH_CHECK(false, "npu: the rule for host kernels failed: ", one_line(error));
  }
}

}  // namespace

void bind_host_use(py::module_& m) {
  m.def("fallback_counts", [] {
    py::dict counts;
    for (const auto& [name, calls] : fallback_counts())
      counts[py::str(name)] = calls;
    return counts;
  });
  m.def("reset_fallback_counts", &reset_fallback_counts);
  // `rule(name) -> (is_final, refusal or None)`, called at an op's first call on the host.
  m.def("set_host_use_rule", [](py::function rule) {
    python_rule = rule.release().ptr();
    reset_host_use();
    set_host_use_rule(&ask);
  });
  m.def("reset_host_use", &reset_host_use);
  m.def("has_host_kernel", &has_host_kernel);
  m.def("force_host", &force_host);
  m.def("known_ops", &known_ops);
}

}  // namespace npu::ops::python
