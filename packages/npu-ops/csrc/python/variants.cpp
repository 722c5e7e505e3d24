// Choices between program and host kernel for npu_ops.variants.
#include <pybind11/stl.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "python/module.h"
#include "variants/variant_kernel.h"

namespace npu::ops::python {
namespace {

using variants::Choice;
using variants::ProgramCache;

// References for the life of the process: kernels may call them while the interpreter ends.
PyObject* python_resolve = nullptr;
PyObject* python_choose = nullptr;

// A tensor as (dtype, sizes, axis order), without its values.
py::object describe(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return py::none();
    return py::make_tuple("tensor", c10::toString(tensor.scalar_type()),
                          py::tuple(py::cast(tensor.sizes().vec())),
                          py::tuple(py::cast(variants::axis_order(tensor))));
  }
  if (value.isInt()) return py::cast(value.toInt());
  if (value.isDouble()) return py::cast(value.toDouble());
  if (value.isBool()) return py::cast(value.toBool());
  if (value.isIntList()) return py::cast(value.toIntVector());
  if (value.isDoubleList()) return py::cast(value.toDoubleVector());
  if (value.isBoolList()) return py::cast(value.toBoolList().vec());
  if (value.isString()) return py::cast(value.toStringRef());
  return py::none();
}

c10::DeviceIndex device_of(at::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor().device().index();
  }
  return 0;
}

template <typename Call>
auto with_python(Call&& call) {
  const py::gil_scoped_acquire lock;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    TORCH_CHECK(false, "npu: choosing a kernel failed: ", one_line(error));
  }
}

void resolve() {
  if (Py_IsInitialized() == 0) return;
  with_python([] { py::reinterpret_borrow<py::function>(python_resolve)(); });
}

ProgramCache::Found choose(const OpPlan& plan, at::ArrayRef<c10::IValue> arguments,
                           bool needs_grad) {
  auto choice = std::make_shared<Choice>();
  if (Py_IsInitialized() == 0) return choice;
  return with_python([&]() -> ProgramCache::Found {
    py::list described;
    for (const c10::IValue& value : arguments)
      described.append(describe(value));
    const py::object answer = py::reinterpret_borrow<py::function>(python_choose)(
        plan.name, described, static_cast<int>(device_of(arguments)), needs_grad);
    if (answer.is_none()) return choice;
    choice->program = answer.attr("program").cast<std::shared_ptr<npu::Program>>();
    choice->inputs = answer.attr("inputs").cast<std::vector<std::uint32_t>>();
    for (const std::uint32_t position : choice->inputs)
      choice->input_orders.push_back(variants::axis_order(arguments[position].toTensor()));
    choice->results = answer.attr("results").cast<std::vector<std::int32_t>>();
    choice->output_orders =
        answer.attr("output_orders").cast<std::vector<std::vector<std::int64_t>>>();
    return choice;
  });
}

}  // namespace

void bind_variants(py::module_& m) {
  m.def("variant_ops", &variants::variant_ops);
  m.def("set_active", &variants::set_active);
  m.def("reset_choices", &variants::reset_choices, py::call_guard<py::gil_scoped_release>());
  m.def("program_runs", &variants::program_runs);
  m.def("exchange_choosing", &variants::exchange_choosing);
  m.def("remembered_choices", [] { return variants::program_cache().size(); });
  m.def(
      "set_program_capacity",
      [](std::size_t capacity) { variants::program_cache().set_capacity(capacity); },
      py::call_guard<py::gil_scoped_release>());
  // `resolve()` sets the active ops; `choose(op, arguments, device_index, needs_grad)` returns a
  // program with its ports (npu_ops.variants.autotune), or None for the host kernel.
  m.def("set_deciders", [](py::function given_resolve, py::function given_choose) {
    python_resolve = given_resolve.release().ptr();
    python_choose = given_choose.release().ptr();
    variants::set_deciders({.resolve = &resolve, .choose = &choose});
  });
}

}  // namespace npu::ops::python
