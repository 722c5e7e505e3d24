// Programs: compilation or import, properties, and the choice of a run's request. Runs are in
// run.cpp, sessions in session.cpp.
#include "npu/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "graph/graph.h"
#include "npu/device.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "program/index_checks.h"
#include "program/ports.h"
#include "program/request_pool.h"
#include "program/run_lease.h"
#include "program/status.h"

namespace npu {

using program::check;

std::shared_ptr<Program> Program::load(std::string name, c10::DeviceIndex device_index,
                                       ProgramSource source) {
  return std::shared_ptr<Program>(new Program(std::move(name), device_index, std::move(source)));
}

Program::Program(std::string name, c10::DeviceIndex device_index, ProgramSource source)
    : name_(std::move(name)),
      record_name_("npu::program " + name_),
      device_index_(device_index),
      keep_alive_(std::move(source.keep_alive)),
      requests_(std::make_unique<program::RequestPool>()) {
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
  try {
    loaded_from_cache_ = property("LOADED_FROM_CACHE") == "YES";
    inputs_ = program::read_ports(program_, NPU_INPUT, name_);
    outputs_ = program::read_ports(program_, NPU_OUTPUT, name_);
  } catch (...) {
    driver.program_unload(program_);
    throw;
  }
  has_static_outputs_ = std::all_of(outputs_.begin(), outputs_.end(),
                                    [](const Port& port) { return port.is_static; });
  if (observe::is_enabled()) {
    observe::emit_span("compile", name_, start_ns, end_ns,
                       {observe::Arg::text("stage", "load"),
                        observe::Arg::flag("from_cache", loaded_from_cache_)});
  }
}

Program::~Program() {
  requests_.reset();
  // In a forked child, the vendor's library would wait for threads of the parent.
  if (!is_in_bad_fork()) driver::table().program_unload(program_);
}

std::string Program::property(const std::string& key) const {
  std::array<char, 1024> value{};
  const npu_status status =
      driver::table().program_property(program_, key.c_str(), value.data(), value.size());
  if (status == NPU_ERROR_UNSUPPORTED) return {};
  check(status, ErrorKind::kDriver, "driver-call", "program " + name_ + ", property " + key);
  return value.data();
}

program::Request Program::make_request() {
  npu_request* request = nullptr;
  check(driver::table().request_create(program_, &request), ErrorKind::kProgram, "program-run",
        "program " + name_);
  return program::Request(request);
}

std::vector<at::Tensor> Program::run(const std::vector<at::Tensor>& inputs,
                                     const GivenOutputs& outputs, c10::Device output_device) {
  if (Graph* graph = Graph::capturing()) return graph->add(*this, inputs, outputs, output_device);
  program::Request request = requests_->take();
  if (request == nullptr) request = make_request();
  npu_request* const borrowed = request.get();
  return run_on(borrowed, inputs, outputs, output_device,
                {.running = {}, .program = shared_from_this(), .request = std::move(request)});
}

void Program::check_indices(std::vector<IndexCheck> checks) {
  program::check_ports(name_, checks, inputs_, outputs_);
  index_checks_ = std::move(checks);
}

std::shared_ptr<Session> Program::session() {
  return std::make_shared<Session>(shared_from_this());
}

std::vector<LayerRecord> Program::layers() {
  synchronize(device_index_);
  return requests_->layers();
}

}  // namespace npu
