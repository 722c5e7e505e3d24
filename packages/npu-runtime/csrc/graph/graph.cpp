// Capture and replay. A node has its own request, which stays bound to the addresses of the
// capture.
#include "graph/graph.h"

#include <sstream>
#include <utility>

#include "memory/pool.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/process.h"
#include "npu/stream.h"
#include "program/ports.h"
#include "program/run_lease.h"
#include "stream/stream_state.h"

namespace npu {

namespace {

thread_local Graph* current = nullptr;

// Orders later work of a stream after the current work of another.
void order(c10::Stream before, c10::Stream after) {
  struct Event {
    npu_event* native = nullptr;
    ~Event() { destroy_event(native); }
  } event;
  record_event(&event.native, before);
  wait_event(event.native, after);
}

std::vector<const void*> addresses_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> addresses;
  addresses.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    addresses.push_back(tensor.const_data_ptr());
  return addresses;
}

[[noreturn]] void raise_stale(const std::string& rule) {
  throw Error(ErrorKind::kInput, "capture-stale", "npu.NPUGraph: " + rule);
}

[[noreturn]] void raise_state(const char* rule) {
  throw Error(ErrorKind::kInput, "capture-state", std::string("npu.NPUGraph: ") + rule);
}

}  // namespace

bool is_capturing() noexcept {
  return current != nullptr;
}

Graph* Graph::capturing() noexcept {
  return current;
}

Graph::~Graph() {
  if (is_in_bad_fork()) return;
  if (current == this) stop_capture();
  // A node's request may still be in use; errors of its run remain with the stream.
  try {
    if (device_index_ >= 0) stream::drain_device(device_index_);
  } catch (const Error&) {
    // Otherwise it is unknown whether the requests are done, and one in use must not be destroyed.
    for (Node& node : nodes_)
      static_cast<void>(node.request.release());
  }
  release_pool();
}

void Graph::capture_begin(c10::MempoolId_t pool) {
  if (current != nullptr)
    raise_state("this thread is already capturing a graph; end that capture first.");
  if (is_captured_) raise_state("this graph holds a capture; call reset() before capturing again.");
  pool_device_ = current_device();
  pool_ = pool == c10::MempoolId_t{0, 0} ? memory::new_region_id(/*is_graphs=*/true) : pool;
  memory::Pool& memory = memory::pool(pool_device_);
  memory.retain_region(pool_);  // as long as the graph holds the capture
  memory.begin_region(pool_);
  current = this;
}

void Graph::capture_end() {
  if (current != this) raise_state("capture_end() without capture_begin() on this thread.");
  stop_capture();
  depended_on_.clear();
  is_captured_ = true;
}

void Graph::pause() {
  if (current != this) raise_state("it cannot be paused: this thread is not capturing it.");
  stop_capture();
}

void Graph::resume() {
  if (current != nullptr || is_captured_ || pool_ == c10::MempoolId_t{0, 0})
    raise_state("it cannot be resumed: it was not paused.");
  memory::pool(pool_device_).begin_region(pool_);
  current = this;
}

void Graph::stop_capture() {
  current = nullptr;
  memory::pool(pool_device_).end_region(pool_);
}

void Graph::release_pool() noexcept {
  if (pool_ == c10::MempoolId_t{0, 0}) return;
  memory::pool(pool_device_).release_region(std::exchange(pool_, {0, 0}));
}

c10::MempoolId_t Graph::pool() const {
  if (pool_ == c10::MempoolId_t{0, 0})
    raise_state("it has no memory pool before its capture begins.");
  return pool_;
}

std::string Graph::describe() const {
  std::ostringstream text;
  const auto add = [&text](const char* label, const std::vector<at::Tensor>& tensors) {
    text << label;
    for (const at::Tensor& tensor : tensors) {
      text << ' ' << tensor.scalar_type() << tensor.sizes() << '@' << tensor.const_data_ptr();
    }
  };
  for (const Node& node : nodes_) {
    text << node.program->name();
    add(" in", node.inputs);
    add(" out", node.outputs);
    text << '\n';
  }
  return text.str();
}

void Graph::replay() {
  if (!is_captured_)
    raise_state("nothing was captured; run the step inside torch.npu.graph(g) first.");
  if (current != nullptr) raise_state("a graph cannot be replayed during a capture.");
  if (nodes_.empty()) return;
  check_dependencies();
  for (Node& node : nodes_)
    follow_memory(node);
  const c10::Stream here = current_stream(device_index_);
  for (Node& node : nodes_) {
    if (node.stream != here) order(node.stream, here);
    node.stream = here;
    node.program->run_bound(node.request.get(), node.inputs, node.outputs, {});
  }
}

void Graph::depends_on(std::string name, const at::Tensor& tensor) {
  if (depended_on_.insert(tensor.unsafeGetTensorImpl()).second)
    dependencies_.emplace_back(std::move(name), tensor);
}

void Graph::check_dependencies() const {
  const graph::Dependency* first = nullptr;
  std::size_t count = 0;
  for (const graph::Dependency& one : dependencies_) {
    if (one.is_current()) continue;
    if (first == nullptr) first = &one;
    ++count;
  }
  if (first == nullptr) return;
  const std::string others = count == 1 ? "" : " and " + std::to_string(count - 1) + " more";
  raise_stale("its programs contain the weights of the capture, got a change of " + first->name() +
              others + ". Capture again, or with torch.npu.NPUGraph(weights=\"follow\").");
}

void Graph::follow_memory(Node& node) const {
  if (addresses_of(node.inputs) == node.addresses[0] &&
      addresses_of(node.outputs) == node.addresses[1])
    return;
  if (!follows_weights()) raise_moved(node);
  Program& program = *node.program;
  program::check_inputs(program.name_, program.inputs_, node.inputs);
  stream::state_of(node.stream).drain();  // its latest run may still use the bound memory
  program.bind(node.request.get(), node.inputs, node.outputs);
  node.note_addresses();
}

void Graph::raise_moved(const Node& node) {
  const bool is_input = addresses_of(node.inputs) != node.addresses[0];
  const auto& tensors = is_input ? node.inputs : node.outputs;
  const auto& bound = node.addresses[is_input ? 0 : 1];
  std::size_t i = 0;
  while (tensors[i].const_data_ptr() == bound[i])
    ++i;
  const std::vector<Port>& ports = is_input ? node.program->inputs() : node.program->outputs();
  raise_stale("its programs use the memory of the capture, got other memory for " +
              std::string(is_input ? "input " : "output ") + ports[i].name + " of program " +
              node.program->name() +
              ". Copy new values into the tensor, capture again, or capture with "
              "torch.npu.NPUGraph(weights=\"follow\").");
}

void Graph::Node::note_addresses() {
  addresses[0] = addresses_of(inputs);
  addresses[1] = addresses_of(outputs);
}

void Graph::reset() {
  if (current == this) stop_capture();
  if (device_index_ >= 0) synchronize(device_index_);
  nodes_.clear();
  dependencies_.clear();
  depended_on_.clear();
  release_pool();
  is_captured_ = false;
}

std::vector<at::Tensor> Graph::add(Program& program, const std::vector<at::Tensor>& inputs,
                                   const GivenOutputs& outputs, c10::Device output_device) {
  if (!program.has_static_outputs_) {
    throw Error(ErrorKind::kInput, "capture-dynamic",
                "program " + program.name() +
                    ": shapes of outputs must be known before the run to be captured, got one that "
                    "is not. Compile the "
                    "step with static shapes.");
  }
  Node node{program.shared_from_this(),
            program.make_request(),
            inputs,
            {},
            current_stream(program.device_index_),
            {}};
  // The node keeps a run's resources, and a graph waits before it is destroyed.
  node.outputs = program.run_on(node.request.get(), inputs, outputs, output_device, {});
  node.note_addresses();
  nodes_.push_back(std::move(node));
  device_index_ = program.device_index_;
  return nodes_.back().outputs;
}

}  // namespace npu
