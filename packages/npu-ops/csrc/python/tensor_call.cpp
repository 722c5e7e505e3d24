// Kernel programs on rows of tensors, for compiled graphs.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>

#include "hot/operands.h"
#include "kernel_programs/thread_pool.h"
#include "python/kernel_program.h"
#include "python/module.h"

namespace npu::ops::python {
namespace {

using namespace kernel_programs;

void require(bool is_so, const std::string& what) {
  if (!is_so) throw py::value_error(what);
}

template <typename Make>
at::Tensor allocated(const Make& make) {
  try {
    return make();
  } catch (const c10::Error&) {
    throw std::bad_alloc();
  }
}

// A program on tensors of fixed shapes, called by a compiled graph.
class TensorCall {
 public:
  TensorCall(std::shared_ptr<KernelProgram> program, std::int64_t rows,
             std::vector<std::size_t> positions, std::vector<std::vector<std::int64_t>> arguments,
             std::vector<std::vector<std::int64_t>> results, const at::Device& device,
             bool is_alone)
      : program_(std::move(program)),
        rows_(rows),
        positions_(std::move(positions)),
        arguments_(std::move(arguments)),
        results_(std::move(results)),
        device_(device),
        is_alone_(is_alone) {
    require(!program_->has_tokens(), "`program` must load and store its rows");
    require(rows > 0 && rows < (1 << 24),
            "`rows` must be 1 to 2^24 - 1, got " + std::to_string(rows));
    require(positions_.size() == arguments_.size(),
            "`positions` must have one element per argument");
    check(arguments_, program_->arguments(), "arguments");
    check(results_, program_->results(), "results");
  }

  // None during graph capture, because host code would not be captured.
  py::object run(const py::tuple& inputs, const std::optional<at::Tensor>& times) const {
    if (C10_UNLIKELY(is_capturing())) return py::none();
    check_process();
    c10::SmallVector<at::Tensor, 4> held;  // arguments, then results
    c10::SmallVector<const float*, 4> from;
    c10::SmallVector<float*, 4> to;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      held.push_back(argument(inputs, i));
    }
    py::list out(results_.size());
    for (std::size_t i = 0; i < results_.size(); ++i) {
      held.push_back(allocated([&] { return empty(results_[i]); }));
      out[i] = held.back();
    }
    StepTimes durations;
    if (times) durations.stages = times->mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (i < positions_.size()) {
        from.push_back(static_cast<const float*>(held[i].const_data_ptr()));
      } else {
        to.push_back(static_cast<float*>(held[i].mutable_data_ptr()));
      }
    }
    {
      const py::gil_scoped_release unlocked;
      hot::Windows windows;
      if (C10_UNLIKELY(!is_host_access_free())) {
        for (const at::Tensor& tensor : held)
          windows.open(tensor);
      }
      const int workers = is_alone_ ? kAlone : std::min(usable_processors(), at::get_num_threads());
      program_->run_rows(static_cast<int>(rows_), from.data(), to.data(), workers, durations);
    }
    return out;
  }

  // Also None if there is a listener, or if `is_current(inputs)` is false: the compiled graph then
  // takes its usual path. Runs no Python code otherwise.
  py::object run_current(const py::handle& is_current, const py::tuple& inputs) const {
    if (C10_UNLIKELY(observe::is_enabled())) return py::none();
    if (!is_current.is_none() && is_current(inputs).ptr() != Py_True) return py::none();
    return run(inputs, std::nullopt);
  }

 private:
  at::Tensor empty(const std::vector<std::int64_t>& shape) const {
    if (device_.is_cpu()) return at::detail::empty_cpu(shape, at::kFloat);
    return at::empty(shape, at::TensorOptions(at::kFloat).device(device_));
  }

  at::Tensor argument(const py::tuple& inputs, std::size_t i) const {
    const auto name = [&] { return "input " + std::to_string(positions_[i]); };
    require(positions_[i] < inputs.size(), name() + ": is missing");
    const py::object item = inputs[positions_[i]];
    require(THPVariable_Check(item.ptr()), name() + " must be a tensor");
    const at::Tensor& given = THPVariable_Unpack(item.ptr());
    require(
        given.layout() == at::kStrided && given.scalar_type() == at::kFloat &&
            given.sizes() == at::IntArrayRef(arguments_[i]) &&
            (given.is_cpu() || given.device().type() == at::kPrivateUse1),
        name() + " must be float32 of the shape that the graph was compiled for, on npu or cpu");
    if (given.is_contiguous() && !given.is_neg()) return given;
    const at::NoGradGuard no_grad;
    return given.resolve_neg().contiguous();
  }

  void check(const std::vector<std::vector<std::int64_t>>& shapes, const std::vector<int>& widths,
             const std::string& name) const {
    require(shapes.size() == widths.size(),
            name + " must be " + std::to_string(widths.size()) + ", as in the program");
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      require(c10::multiply_integers(shapes[i]) == rows_ * widths[i],
              name + " must have the program's rows, got another size at " + std::to_string(i));
    }
  }

  std::shared_ptr<KernelProgram> program_;
  const std::int64_t rows_;
  const std::vector<std::size_t> positions_;
  const std::vector<std::vector<std::int64_t>> arguments_, results_;
  const at::Device device_;
  const bool is_alone_;
};

}  // namespace

void bind_tensor_call(py::module_& m) {
  py::class_<TensorCall>(m, "TensorCall")
      .def(py::init([](std::shared_ptr<KernelProgram> program, std::int64_t rows,
                       std::vector<std::size_t> positions,
                       std::vector<std::vector<std::int64_t>> arguments,
                       std::vector<std::vector<std::int64_t>> results, const std::string& device,
                       bool is_alone) {
             return TensorCall(std::move(program), rows, std::move(positions), std::move(arguments),
                               std::move(results), at::Device(device), is_alone);
           }),
           py::arg("program"), py::arg("rows"), py::arg("positions"), py::arg("arguments"),
           py::arg("results"), py::arg("device"), py::arg("is_alone"))
      .def("run", &TensorCall::run, py::arg("inputs"), py::arg("times") = py::none())
      .def("run_current", &TensorCall::run_current, py::arg("is_current"), py::arg("inputs"));
}

}  // namespace npu::ops::python
