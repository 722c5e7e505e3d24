// Runs: bind tensors, run synchronously or enqueued, and report to observers. Loading is in
// program.cpp.
#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>

#include <cstring>
#include <memory>
#include <utility>

#include "npu/allocator.h"
#include "npu/host_access.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "npu/program.h"
#include "npu/stream.h"
#include "program/index_checks.h"
#include "program/layer_samples.h"
#include "program/placement.h"
#include "program/ports.h"
#include "program/run_lease.h"
#include "program/status.h"
#include "stream/launch_blocking.h"
#include "stream/sanitizer.h"
#include "stream/stream_state.h"

namespace npu {

using program::check;
using program::mismatch;
using program::raise_input;
using program::RunLease;

namespace {

at::Tensor allocate(c10::IntArrayRef shape, at::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return at::detail::empty_cpu(shape, dtype);
  return at::detail::empty_generic(shape, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype,
                                   std::nullopt);
}

// The pool's block of a tensor; nullptr for other memory.
Block* pool_block(const at::Tensor& tensor) {
  return tensor.is_privateuseone() ? block_of(tensor.storage().data()) : nullptr;
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() != 0;
}

bool are_pooled(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (has_memory(tensor) && pool_block(tensor) == nullptr) return false;
  }
  return true;
}

// Precondition: all are pooled.
void collect_blocks(const std::vector<at::Tensor>& tensors, std::vector<Block*>& blocks) {
  for (const at::Tensor& tensor : tensors) {
    if (has_memory(tensor)) blocks.push_back(pool_block(tensor));
  }
}

[[noreturn]] void raise_index(std::string violation) {
  throw Error(ErrorKind::kIndex, "index-range", std::move(violation));
}

// Reports a run to observers, with its layers if a request is given.
void tell_run(const observe::Span& run, const std::string& device, const npu_program* program,
              npu_request* request) {
  if (!observe::is_enabled()) return;
  observe::emit_span(run, {observe::Arg::text("device", device)});
  if (request != nullptr) program::tell_layers(program, request, run);
}

}  // namespace

// An enqueued run. It ends on a thread of the driver.
class EnqueuedRun final : public stream::PendingWork {
 public:
  EnqueuedRun(Program& program, npu_request* request, stream::StreamState& stream,
              std::vector<Block*> blocks, std::vector<program::CheckedIndices> checks,
              RunLease lease)
      : PendingWork(stream, std::move(blocks)),
        program_(program),
        request_(request),
        checks_(std::move(checks)),
        lease_(std::move(lease)) {}

  const observe::Origin& origin() const noexcept { return origin_; }

 private:
  std::string describe() const override { return "program " + program_.name(); }

  void on_end(npu_status status) override {
    const std::int64_t end_ns = observe::now_ns();
    const std::int64_t start_ns = stream().note_end(origin_.time_ns, end_ns);
    program_.note_duration(start_ns, end_ns);
    tell_run(
        {.category = "program",
         .name = program_.name(),
         .start_ns = start_ns,
         .end_ns = end_ns,
         .device_index = stream().device_index(),
         .stream = stream().id(),
         .origin = &origin_},
        program_.device_name(), program_.program_,
        status == NPU_OK && program_.requests_->layer_sampler().count_run() ? request_ : nullptr);
    keep_violation(status == NPU_OK);
    if (status == NPU_OK) lease_.give_back(*program_.requests_);
  }

  // Only the inputs of a failed run can be checked; they may be the cause.
  void keep_violation(bool has_outputs) {
    try {
      for (const program::CheckedIndices& check : checks_) {
        if (!has_outputs && program::needs_outputs(*check.check)) continue;
        if (auto violation = check.find_violation(program_.name())) {
          stream().keep_error(ErrorKind::kIndex, "index-range", *std::move(violation));
          return;
        }
      }
    } catch (const Error& error) {  // the driver protects the memory from the host
      stream().keep_error(error.kind(), "driver-call", error.message());
    }
  }

  Program& program_;
  npu_request* request_;  // the lease's, or that of a session or graph kept by the lease
  // Memory of the blocks; the descriptions belong to the program, which the lease keeps.
  std::vector<program::CheckedIndices> checks_;
  RunLease lease_;
  observe::Origin origin_ = observe::here();
};

std::vector<at::Tensor> Program::run_on(npu_request* request, const std::vector<at::Tensor>& inputs,
                                        const GivenOutputs& outputs, c10::Device output_device,
                                        RunLease lease) {
  RECORD_FUNCTION(record_name_, std::vector<c10::IValue>(inputs.begin(), inputs.end()));
  program::check_inputs(name_, inputs_, inputs);
  std::vector<at::Tensor> results = prepare_outputs(outputs, output_device);
  bind(request, inputs, results);
  start(request, inputs, results, output_device, std::move(lease));
  return results;
}

void Program::run_bound(npu_request* request, const std::vector<at::Tensor>& inputs,
                        std::vector<at::Tensor>& outputs, RunLease lease) {
  RECORD_FUNCTION(record_name_, std::vector<c10::IValue>(inputs.begin(), inputs.end()));
  for (const at::Tensor& output : outputs)
    output.unsafeGetTensorImpl()->bump_version();
  start(request, inputs, outputs, c10::Device(c10::DeviceType::PrivateUse1, device_index_),
        std::move(lease));
}

void Program::start(npu_request* request, const std::vector<at::Tensor>& inputs,
                    std::vector<at::Tensor>& results, c10::Device output_device, RunLease lease) {
  check_process();
  stream::StreamState& stream = stream::state_of(current_stream(device_index_));
  stream.raise_error();
  const program::RunFacts facts{
      .is_pooled = are_pooled(inputs) && are_pooled(results),
      .has_static_outputs = has_static_outputs_,
      .is_stream_idle = stream.is_idle(),
      .is_launch_blocking = is_launch_blocking(),
      .mean_duration_ns = mean_duration_ns_.load(std::memory_order_relaxed),
      .inline_below_ns = inline_below_ns_,
  };
  sanitizer::on_program(stream, name_, inputs, results);
  if (program::place_run(facts) == program::Placement::kInline) {
    if (!index_checks_.empty()) {
      if (!facts.is_stream_idle) stream.drain();  // the run would wait as well
      auto violation = program::find_violation(name_, index_checks_, inputs, results, false);
      if (violation.has_value()) {
        lease.give_back(*requests_);
        raise_index(*std::move(violation));
      }
    }
    run_inline(request, stream, results, output_device);
    lease.give_back(*requests_);
    if (!index_checks_.empty()) {
      auto violation = program::find_violation(name_, index_checks_, inputs, results, true);
      if (violation.has_value()) raise_index(*std::move(violation));
    }
    return;
  }
  std::vector<program::CheckedIndices> later;
  for (const IndexCheck& index_check : index_checks_) {
    const program::CheckedIndices checked(index_check, inputs, results);
    if (program::needs_outputs(index_check) || !checked.is_idle()) {
      later.push_back(checked);
    } else if (auto violation = checked.find_violation(name_)) {
      lease.give_back(*requests_);
      raise_index(*std::move(violation));
    }
  }
  std::vector<Block*> blocks;
  blocks.reserve(inputs.size() + results.size());
  collect_blocks(inputs, blocks);
  collect_blocks(results, blocks);
  enqueue(request, stream, std::move(blocks), std::move(later), std::move(lease));
}

std::vector<at::Tensor> Program::prepare_outputs(const GivenOutputs& outputs,
                                                 c10::Device output_device) const {
  std::vector<at::Tensor> results(outputs_.size());
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Port& port = outputs_[i];
    if (i < outputs.size() && outputs[i].has_value()) {
      results[i] = *outputs[i];
      const std::string problem = mismatch(port, results[i]);
      // A dynamic port's shape is checked once it is known.
      if (!problem.empty() && port.is_static) raise_input(name_, "output", i, port, problem);
      results[i].unsafeGetTensorImpl()->bump_version();
    } else if (port.is_static) {
      results[i] = allocate(port.shape, port.dtype, output_device);
    }
  }
  return results;
}

void Program::bind(npu_request* request, const std::vector<at::Tensor>& inputs,
                   const std::vector<at::Tensor>& outputs) const {
  const npu_driver& driver = driver::table();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& tensor = inputs[i];
    check(driver.request_bind(request, NPU_INPUT, i, program::from_torch(tensor.scalar_type()),
                              static_cast<std::int32_t>(tensor.dim()), tensor.sizes().data(),
                              const_cast<void*>(tensor.const_data_ptr())),
          ErrorKind::kProgram, "program-run", "program " + name_ + ", input " + inputs_[i].name);
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Port& port = outputs_[i];
    if (!port.is_static) continue;
    check(driver.request_bind(request, NPU_OUTPUT, i, program::from_torch(port.dtype),
                              static_cast<std::int32_t>(port.shape.size()), port.shape.data(),
                              outputs[i].mutable_data_ptr()),
          ErrorKind::kProgram, "program-run", "program " + name_ + ", output " + port.name);
  }
}

void Program::run_inline(npu_request* request, stream::StreamState& stream,
                         std::vector<at::Tensor>& outputs, c10::Device output_device) {
  const std::int64_t start_ns = observe::now_ns();
  check(driver::table().request_run(request, stream.native(), nullptr, nullptr),
        ErrorKind::kProgram, "program-run", "program " + name_);
  const std::int64_t end_ns = observe::now_ns();
  note_duration(start_ns, end_ns);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs_[i].is_static) outputs[i] = fetch_output(request, i, outputs[i], output_device);
  }
  tell_run({.category = "program",
            .name = name_,
            .start_ns = start_ns,
            .end_ns = end_ns,
            .device_index = device_index_,
            .stream = stream.id()},
           device_name_, program_, requests_->layer_sampler().count_run() ? request : nullptr);
}

void Program::enqueue(npu_request* request, stream::StreamState& stream, std::vector<Block*> blocks,
                      std::vector<program::CheckedIndices> checks, RunLease lease) {
  auto work = std::make_unique<EnqueuedRun>(*this, request, stream, std::move(blocks),
                                            std::move(checks), std::move(lease));
  const observe::Origin origin = work->origin();
  if (const npu_status status =
          driver::table().request_run(request, stream.native(), &stream::PendingWork::done,
                                      static_cast<stream::PendingWork*>(work.get()));
      status != NPU_OK) {
    work->cancel();
    check(status, ErrorKind::kProgram, "program-run", "program " + name_);
  }
  static_cast<void>(work.release());  // deletes itself when it is done, possibly already
  if (observe::is_enabled()) {
    observe::emit_span({.category = "launch",
                        .name = name_,
                        .start_ns = origin.time_ns,
                        .end_ns = observe::now_ns(),
                        .device_index = device_index_,
                        .stream = stream.id(),
                        .origin = &origin});
  }
}

at::Tensor Program::fetch_output(npu_request* request, std::size_t index, const at::Tensor& given,
                                 c10::Device output_device) const {
  npu_port actual{};
  const void* data = nullptr;
  check(driver::table().request_output(request, index, &actual, &data), ErrorKind::kProgram,
        "program-run", "program " + name_ + ", output " + outputs_[index].name);
  const Port port{outputs_[index].name, program::to_torch(actual.dtype),
                  std::vector<std::int64_t>(actual.dims, actual.dims + actual.rank), true};
  at::Tensor result = given;
  if (!result.defined()) {
    result = allocate(port.shape, port.dtype, output_device);
  } else if (const std::string problem = mismatch(port, result); !problem.empty()) {
    raise_input(name_, "output", index, port, problem);
  }
  if (result.numel() != 0) {
    const HostAccess window(result.storage().data());
    std::memcpy(result.mutable_data_ptr(), data, result.nbytes());
  }
  return result;
}

void Program::note_duration(std::int64_t start_ns, std::int64_t end_ns) {
  // An exponential mean: one slow first run must not decide forever.
  const std::int64_t mean = mean_duration_ns_.load(std::memory_order_relaxed);
  const std::int64_t latest = end_ns - start_ns;
  mean_duration_ns_.store(mean == 0 ? latest : (3 * mean + latest) / 4, std::memory_order_relaxed);
}

}  // namespace npu
