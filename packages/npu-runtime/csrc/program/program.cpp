// Programs: checking and binding tensors, running, and collecting outputs. Compiling is the
// driver's.
#include "npu/program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "driver/choice.h"
#include "graph/graph.h"
#include "npu/allocator.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "npu/stream.h"
#include "program/placement.h"
#include "stream/launch_blocking.h"
#include "stream/sanitizer.h"
#include "stream/stream_state.h"

namespace npu {

namespace {

constexpr std::pair<npu_dtype, at::ScalarType> kDtypes[] = {
    {NPU_DTYPE_BOOL, at::kBool},     {NPU_DTYPE_UINT8, at::kByte},
    {NPU_DTYPE_INT8, at::kChar},     {NPU_DTYPE_INT16, at::kShort},
    {NPU_DTYPE_INT32, at::kInt},     {NPU_DTYPE_INT64, at::kLong},
    {NPU_DTYPE_FLOAT16, at::kHalf},  {NPU_DTYPE_BFLOAT16, at::kBFloat16},
    {NPU_DTYPE_FLOAT32, at::kFloat}, {NPU_DTYPE_FLOAT64, at::kDouble}};

at::ScalarType to_torch(npu_dtype dtype) {
  for (const auto& [theirs, ours] : kDtypes) {
    if (theirs == dtype) return ours;
  }
  return at::ScalarType::Undefined;
}

npu_dtype from_torch(at::ScalarType dtype) {
  for (const auto& [theirs, ours] : kDtypes) {
    if (ours == dtype) return theirs;
  }
  return NPU_DTYPE_INVALID;
}

template <typename Dims>
std::string shape_text(const Dims& dims) {
  std::ostringstream text;
  text << '(';
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text << (i == 0 ? "" : ", ");
    if (dims[i] < 0) {
      text << '?';
    } else {
      text << dims[i];
    }
  }
  text << ')';
  return text.str();
}

void check(npu_status status, ErrorKind kind, const char* code, const std::string& subject) {
  if (status == NPU_OK) return;
  throw Error(kind, code, subject + ": " + driver::table().last_error());
}

bool shape_fits(const Port& port, c10::IntArrayRef shape) {
  if (port.shape.size() != shape.size()) return false;
  return std::equal(
      shape.begin(), shape.end(), port.shape.begin(),
      [](std::int64_t actual, std::int64_t wanted) { return wanted < 0 || actual == wanted; });
}

// One sentence for a tensor that a port cannot take; empty when it can.
std::string mismatch(const Port& port, const at::Tensor& tensor) {
  if (!tensor.defined()) return "got no tensor";
  if (tensor.scalar_type() != port.dtype || !shape_fits(port, tensor.sizes())) {
    return "needs " + std::string(c10::toString(port.dtype)) + " " + shape_text(port.shape) +
           "; got " + std::string(c10::toString(tensor.scalar_type())) + " " +
           shape_text(tensor.sizes());
  }
  if (!tensor.is_cpu() && !tensor.is_privateuseone()) {
    return "needs a tensor on npu or cpu; got one on " + tensor.device().str();
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    return "needs a contiguous tensor; call .contiguous() first";
  }
  return {};
}

[[noreturn]] void raise_input(const std::string& program, const char* what, std::size_t index,
                              const Port& port, const std::string& problem) {
  throw Error(ErrorKind::kInput, "program-input",
              "program " + program + ": " + what + " " + std::to_string(index) + " (" + port.name +
                  ") " + problem + ".");
}

at::Tensor allocate(c10::IntArrayRef shape, at::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return at::detail::empty_cpu(shape, dtype);
  return at::detail::empty_generic(shape, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype,
                                   std::nullopt);
}

// Adds the pool's blocks behind the tensors. False when one of them is not the pool's memory.
bool collect_blocks(const std::vector<at::Tensor>& tensors, std::vector<Block*>& blocks) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (!tensor.is_privateuseone()) return false;
    Block* block = block_of(tensor.storage().data());
    if (block == nullptr) return false;
    blocks.push_back(block);
  }
  return true;
}

std::vector<LayerRecord> read_layers(npu_request* request) {
  const npu_driver& driver = driver::table();
  std::size_t count = 0;
  if (driver.request_layers(request, nullptr, 0, &count) != NPU_OK) return {};
  std::vector<npu_layer_record> raw(count);
  check(driver.request_layers(request, raw.data(), raw.size(), &count), ErrorKind::kDriver,
        "driver-call", "npu: reading layer times");
  std::vector<LayerRecord> layers;
  for (const npu_layer_record& record : raw) {
    layers.push_back({record.name, record.type, record.implementation, record.duration_us});
  }
  return layers;
}

std::string span_args(const std::string& device_name, const stream::StreamState& stream) {
  return "\"device\": \"" + device_name + "\", \"stream\": " + std::to_string(stream.id());
}

}  // namespace

void Program::RequestDeleter::operator()(npu_request* request) const noexcept {
  if (!is_in_bad_fork()) driver::table().request_destroy(request);
}

std::shared_ptr<Program> Program::load(std::string name, c10::DeviceIndex device_index,
                                       ProgramSource source) {
  return std::shared_ptr<Program>(new Program(std::move(name), device_index, std::move(source)));
}

Program::Program(std::string name, c10::DeviceIndex device_index, ProgramSource source)
    : name_(std::move(name)),
      record_name_("npu::program " + name_),
      device_index_(device_index),
      keep_alive_(std::move(source.keep_alive)) {
  check_process();
  check_device(device_index);
  mark_device_used();
  const npu_driver& driver = driver::table();
  npu_device_properties properties{};
  check(driver.device_properties(device_index, &properties), ErrorKind::kDriver, "driver-call",
        "npu");
  device_name_ = properties.name;
  inline_below_ns_ = properties.inline_below_ns;

  std::vector<npu_option> options;
  for (const auto& [key, value] : source.options)
    options.push_back({key.c_str(), value.c_str()});
  const npu_program_source from{
      .path = source.path.empty() ? nullptr : source.path.c_str(),
      .model = source.model.empty() ? nullptr : source.model.data(),
      .model_bytes = source.model.size(),
      .weights = source.weights,
      .weights_bytes = source.weights_bytes,
      .options = options.data(),
      .option_count = options.size(),
  };
  const std::int64_t start_ns = observe::now_ns();
  check(driver.program_load(device_index, &from, &program_), ErrorKind::kProgram, "program-load",
        "Cannot compile program " + name_ + " for " + device_name_);
  const std::int64_t end_ns = observe::now_ns();
  load_duration_ns_ = end_ns - start_ns;
  loaded_from_cache_ = property("LOADED_FROM_CACHE") == "YES";
  try {
    read_ports();
  } catch (...) {
    driver.program_unload(program_);
    throw;
  }
  if (observe::is_enabled()) {
    observe::emit_span("compile", name_, start_ns, end_ns,
                       std::string("\"stage\": \"load\", \"from_cache\": ") +
                           (loaded_from_cache_ ? "true" : "false"));
  }
}

Program::~Program() {
  idle_.clear();
  // In a forked child the vendor's library would wait for threads that only the parent has.
  if (!is_in_bad_fork()) driver::table().program_unload(program_);
}

std::string Program::property(const std::string& key) const {
  std::array<char, 1024> value{};
  if (driver::table().program_property(program_, key.c_str(), value.data(), value.size()) != NPU_OK)
    return {};
  return value.data();
}

void Program::read_ports() {
  const npu_driver& driver = driver::table();
  const std::string subject = "program " + name_;
  for (const npu_direction direction : {NPU_INPUT, NPU_OUTPUT}) {
    auto& ports = direction == NPU_INPUT ? inputs_ : outputs_;
    std::size_t count = 0;
    check(driver.program_port_count(program_, direction, &count), ErrorKind::kProgram,
          "program-load", subject);
    for (std::size_t i = 0; i < count; ++i) {
      npu_port port{};
      check(driver.program_port(program_, direction, i, &port), ErrorKind::kProgram, "program-load",
            subject);
      if (port.rank < 0 && direction == NPU_INPUT) {
        throw Error(
            ErrorKind::kProgram, "program-load",
            subject + ": input " + port.name + " has no rank; give the model's inputs a rank.");
      }
      const auto rank = static_cast<std::size_t>(std::max(port.rank, 0));
      std::vector<std::int64_t> shape(port.dims, port.dims + rank);
      const bool is_static =
          port.rank >= 0 &&
          std::none_of(shape.begin(), shape.end(), [](std::int64_t dim) { return dim < 0; });
      if (direction == NPU_OUTPUT) has_static_outputs_ &= is_static;
      ports.push_back({port.name, to_torch(port.dtype), std::move(shape), is_static});
    }
  }
}

Program::Request Program::make_request() {
  npu_request* request = nullptr;
  check(driver::table().request_create(program_, &request), ErrorKind::kProgram, "program-run",
        "program " + name_);
  return Request(request);
}

Program::Request Program::take_request() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Request request = std::move(idle_.back());
      idle_.pop_back();
      return request;
    }
  }
  return make_request();
}

void Program::return_request(Request request) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(request));
}

std::vector<at::Tensor> Program::run(const std::vector<at::Tensor>& inputs,
                                     const GivenOutputs& outputs, c10::Device output_device) {
  if (Graph* graph = Graph::capturing()) return graph->add(*this, inputs, outputs, output_device);
  npu_request* request = take_request().release();
  try {
    // The program must outlive its pending run, and so must the request.
    return run_on(request, inputs, outputs, output_device,
                  [self = shared_from_this(), request](npu_status status) {
                    Request owned(request);
                    // After a failure the request's bindings and state are in doubt; it is dropped.
                    if (status == NPU_OK) self->return_request(std::move(owned));
                  });
  } catch (...) {
    const Request dropped(request);
    throw;
  }
}

std::shared_ptr<Session> Program::session() {
  return std::make_shared<Session>(shared_from_this());
}

std::vector<at::Tensor> Program::run_on(npu_request* request, const std::vector<at::Tensor>& inputs,
                                        const GivenOutputs& outputs, c10::Device output_device,
                                        const std::function<void(npu_status)>& on_end) {
  RECORD_FUNCTION(record_name_, std::vector<c10::IValue>(inputs.begin(), inputs.end()));
  check_inputs(inputs);
  std::vector<at::Tensor> results = prepare_outputs(outputs, output_device);
  bind(request, inputs, results);
  start(request, inputs, results, output_device, on_end);
  return results;
}

void Program::run_bound(npu_request* request, const std::vector<at::Tensor>& inputs,
                        std::vector<at::Tensor>& outputs) {
  RECORD_FUNCTION(record_name_, std::vector<c10::IValue>(inputs.begin(), inputs.end()));
  for (const at::Tensor& output : outputs)
    output.unsafeGetTensorImpl()->bump_version();
  start(request, inputs, outputs, c10::Device(c10::DeviceType::PrivateUse1, device_index_),
        [](npu_status) {});
}

void Program::start(npu_request* request, const std::vector<at::Tensor>& inputs,
                    std::vector<at::Tensor>& results, c10::Device output_device,
                    const std::function<void(npu_status)>& on_end) {
  check_process();
  stream::StreamState& stream = stream::state_of(current_stream(device_index_));
  stream.raise_error();
  std::vector<Block*> blocks;
  const program::RunFacts facts{
      .is_pooled = collect_blocks(inputs, blocks) && collect_blocks(results, blocks),
      .has_static_outputs = has_static_outputs_,
      .is_stream_idle = stream.is_idle(),
      .is_launch_blocking = is_launch_blocking(),
      .mean_duration_ns = mean_duration_ns_.load(std::memory_order_relaxed),
      .inline_below_ns = inline_below_ns_,
  };
  sanitizer::on_program(stream, name_, inputs, results);
  if (program::place_run(facts) == program::Placement::kEnqueued) {
    enqueue(request, stream, std::move(blocks), on_end);
  } else {
    run_inline(request, stream, results, output_device);
    on_end(NPU_OK);
  }
}

void Program::check_inputs(const std::vector<at::Tensor>& inputs) const {
  if (inputs.size() != inputs_.size()) {
    throw Error(ErrorKind::kInput, "program-input",
                "program " + name_ + ": takes " + std::to_string(inputs_.size()) + " inputs; got " +
                    std::to_string(inputs.size()) + ".");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (const std::string problem = mismatch(inputs_[i], inputs[i]); !problem.empty()) {
      raise_input(name_, "input", i, inputs_[i], problem);
    }
  }
}

std::vector<at::Tensor> Program::prepare_outputs(const GivenOutputs& outputs,
                                                 c10::Device output_device) const {
  std::vector<at::Tensor> results(outputs_.size());
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Port& port = outputs_[i];
    if (i < outputs.size() && outputs[i].has_value()) {
      results[i] = *outputs[i];
      const std::string problem = mismatch(port, results[i]);
      // A dynamic port's shape is checked when it is known.
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
    check(driver.request_bind(request, NPU_INPUT, i, from_torch(tensor.scalar_type()),
                              static_cast<std::int32_t>(tensor.dim()), tensor.sizes().data(),
                              const_cast<void*>(tensor.const_data_ptr())),
          ErrorKind::kProgram, "program-run", "program " + name_ + ", input " + inputs_[i].name);
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Port& port = outputs_[i];
    if (!port.is_static) continue;
    check(driver.request_bind(request, NPU_OUTPUT, i, from_torch(port.dtype),
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
  if (observe::is_enabled()) {
    observe::emit_span("program", name_, start_ns, end_ns, span_args(device_name_, stream));
  }
}

void Program::enqueue(npu_request* request, stream::StreamState& stream, std::vector<Block*> blocks,
                      const std::function<void(npu_status)>& on_end) {
  auto finished = [this, on_end, &stream, queued_ns = observe::now_ns()](npu_status status) {
    const std::int64_t end_ns = observe::now_ns();
    const std::int64_t start_ns = stream.note_end(queued_ns, end_ns);
    note_duration(start_ns, end_ns);
    if (observe::is_enabled()) {
      observe::emit_span("program", name_, start_ns, end_ns, span_args(device_name_, stream));
    }
    on_end(status);
  };
  auto work = std::make_unique<stream::PendingWork>(stream, "program " + name_, std::move(blocks),
                                                    std::move(finished));
  if (const npu_status status = driver::table().request_run(request, stream.native(),
                                                            &stream::PendingWork::done, work.get());
      status != NPU_OK) {
    work->cancel();
    check(status, ErrorKind::kProgram, "program-run", "program " + name_);
  }
  static_cast<void>(work.release());  // it deletes itself when it is done
}
at::Tensor Program::fetch_output(npu_request* request, std::size_t index, const at::Tensor& given,
                                 c10::Device output_device) const {
  npu_port actual{};
  const void* data = nullptr;
  check(driver::table().request_output(request, index, &actual, &data), ErrorKind::kProgram,
        "program-run", "program " + name_ + ", output " + outputs_[index].name);
  const Port port{outputs_[index].name, to_torch(actual.dtype),
                  std::vector<std::int64_t>(actual.dims, actual.dims + actual.rank), true};
  at::Tensor result = given;
  if (!result.defined()) {
    result = allocate(port.shape, port.dtype, output_device);
  } else if (const std::string problem = mismatch(port, result); !problem.empty()) {
    raise_input(name_, "output", index, port, problem);
  }
  if (result.numel() != 0) std::memcpy(result.mutable_data_ptr(), data, result.nbytes());
  return result;
}

Session::Session(std::shared_ptr<Program> program)
    : program_(std::move(program)), request_(program_->make_request()) {}

Session::~Session() {
  // The driver may still use the request; errors of its run stay with the stream.
  if (!is_in_bad_fork()) wait_for_run();
}

void Session::wait_for_run() {
  while (is_running_->load(std::memory_order_acquire)) {
    for (c10::StreamId id = 0; id < kStreams; ++id)
      stream::state_of(program_->device_index_, id).drain();
  }
}

std::vector<at::Tensor> Session::run(const std::vector<at::Tensor>& inputs,
                                     const GivenOutputs& outputs, c10::Device output_device) {
  const std::lock_guard lock(mutex_);
  wait_for_run();
  if (Graph::capturing() != nullptr) {
    throw Error(
        ErrorKind::kInput, "capture-session",
        "program " + program_->name() +
            ": a session's variables cannot be captured; run the session outside the graph.");
  }
  is_running_->store(true, std::memory_order_release);
  try {
    return program_->run_on(request_.get(), inputs, outputs, output_device,
                            [self = program_, flag = is_running_](npu_status) {
                              flag->store(false, std::memory_order_release);
                            });
  } catch (...) {
    is_running_->store(false, std::memory_order_release);
    throw;
  }
}

// OpenVINO's C interface has no access to variables, and a new request starts them anew.
void Session::reset() {
  const std::lock_guard lock(mutex_);
  wait_for_run();
  request_.reset();
  request_ = program_->make_request();
}

std::vector<LayerRecord> Session::layers() {
  const std::lock_guard lock(mutex_);
  wait_for_run();
  return read_layers(request_.get());
}

std::vector<LayerRecord> Program::layers() {
  synchronize(device_index_);
  const std::lock_guard lock(mutex_);
  return idle_.empty() ? std::vector<LayerRecord>{} : read_layers(idle_.back().get());
}

void Program::note_duration(std::int64_t start_ns, std::int64_t end_ns) {
  // A mean that forgets: one slow first run must not decide for ever.
  const std::int64_t mean = mean_duration_ns_.load(std::memory_order_relaxed);
  const std::int64_t latest = end_ns - start_ns;
  mean_duration_ns_.store(mean == 0 ? latest : (3 * mean + latest) / 4, std::memory_order_relaxed);
}

}  // namespace npu
