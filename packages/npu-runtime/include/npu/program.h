// A program: a compiled model that runs on tensors without copying inputs and outputs.
//
// Compiled graphs, ops and language model steps are all programs. The driver compiles and runs them
// (driver.h); this is its interface for torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "npu/allocator.h"
#include "npu/driver.h"
#include "npu/export.h"

namespace npu {

// An input or output. A dynamic dimension is -1.
struct Port {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  bool is_static;
};

// Indices that every run checks: inputs before it, outputs after it. A valid index is from 0, or
// from -size if negative ones count from the end, to size - 1.
struct IndexCheck {
  std::string what;  // description for messages
  std::size_t port = 0;
  bool is_output = false;
  // The size of the indexed dimension: a number, a dimension of input `size_port`, or the maximum
  // of that input or output.
  std::optional<std::int64_t> size;
  std::size_t size_port = 0;
  std::optional<std::int64_t> size_dim;
  bool is_size_output = false;
  bool wraps = false;
};

// Source of a program: a file in the vendor's format, or its text with the weights.
struct ProgramSource {
  std::string path;
  std::string model;
  const void* weights = nullptr;
  std::size_t weights_bytes = 0;
  std::shared_ptr<void> keep_alive = nullptr;  // owner of `weights`; the program holds it
  std::vector<std::pair<std::string, std::string>> options;
};

// Outputs from the caller, by position; an undefined tensor (or a shorter list) means: allocate it.
using GivenOutputs = std::vector<std::optional<at::Tensor>>;

class Session;
class Graph;

struct LayerRecord {
  std::string name;
  std::string type;
  std::string implementation;
  std::int64_t duration_us;
};

namespace stream {
class StreamState;
}

namespace program {
class RequestPool;
struct CheckedIndices;
struct RunLease;

struct RequestDeleter {
  NPU_API void operator()(npu_request* request) const noexcept;
};
using Request = std::unique_ptr<npu_request, RequestDeleter>;
}  // namespace program

class NPU_API Program : public std::enable_shared_from_this<Program> {
 public:
  // Compiles or imports. Throws Error [program-load].
  static std::shared_ptr<Program> load(std::string name, c10::DeviceIndex device_index,
                                       ProgramSource source);
  ~Program();

  const std::string& name() const noexcept { return name_; }
  const std::string& device_name() const noexcept { return device_name_; }
  const std::vector<Port>& inputs() const noexcept { return inputs_; }
  const std::vector<Port>& outputs() const noexcept { return outputs_; }
  std::int64_t load_duration_ns() const noexcept { return load_duration_ns_; }
  bool loaded_from_cache() const noexcept { return loaded_from_cache_; }

  // A property of the compiled program as text; empty if the driver does not know the key.
  std::string property(const std::string& key) const;

  // Runs on any idle request; callable from many threads. Inputs are contiguous npu or cpu tensors
  // in the order of inputs(). Throws Error [program-input] or [program-run].
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const GivenOutputs& outputs,
                              c10::Device output_device);

  // Makes each later run raise Error [index-range] for an index out of range: at once or, if only
  // the end of an enqueued run shows it, like errors of enqueued work. Call it before the first
  // run. Throws Error [program-input].
  void check_indices(std::vector<IndexCheck> checks);

  // Layers of a latest run, if the program was loaded with profiling; empty otherwise.
  std::vector<LayerRecord> layers();

  // A new execution context. Its variables persist from run to run.
  std::shared_ptr<Session> session();

 private:
  friend class Session;
  friend class Graph;
  friend class EnqueuedRun;

  Program(std::string name, c10::DeviceIndex device_index, ProgramSource source);

  program::Request make_request();

  // A run on a request that is exclusive to the caller, and kept by the lease if the run is
  // enqueued.
  std::vector<at::Tensor> run_on(npu_request* request, const std::vector<at::Tensor>& inputs,
                                 const GivenOutputs& outputs, c10::Device output_device,
                                 program::RunLease lease);
  // A run on a bound request, into its bound tensors.
  void run_bound(npu_request* request, const std::vector<at::Tensor>& inputs,
                 std::vector<at::Tensor>& outputs, program::RunLease lease);
  std::vector<at::Tensor> prepare_outputs(const GivenOutputs& outputs,
                                          c10::Device output_device) const;
  void bind(npu_request* request, const std::vector<at::Tensor>& inputs,
            const std::vector<at::Tensor>& outputs) const;
  void start(npu_request* request, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor>& results, c10::Device output_device, program::RunLease lease);
  void run_inline(npu_request* request, stream::StreamState& stream,
                  std::vector<at::Tensor>& outputs, c10::Device output_device);
  void enqueue(npu_request* request, stream::StreamState& stream, std::vector<Block*> blocks,
               std::vector<program::CheckedIndices> checks, program::RunLease lease);
  at::Tensor fetch_output(npu_request* request, std::size_t index, const at::Tensor& given,
                          c10::Device output_device) const;
  void note_duration(std::int64_t start_ns, std::int64_t end_ns);

  std::string name_;
  std::string record_name_;
  std::string device_name_;
  c10::DeviceIndex device_index_;
  std::shared_ptr<void> keep_alive_;
  npu_program* program_ = nullptr;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  std::vector<IndexCheck> index_checks_;
  std::int64_t load_duration_ns_ = 0;
  std::int64_t inline_below_ns_ = 0;
  std::atomic<std::int64_t> mean_duration_ns_{0};
  bool loaded_from_cache_ = false;
  bool has_static_outputs_ = true;
  std::unique_ptr<program::RequestPool> requests_;
};

// An execution context. Runs of a session are sequential; a second thread waits.
class NPU_API Session {
 public:
  explicit Session(std::shared_ptr<Program> program);
  ~Session();

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const GivenOutputs& outputs,
                              c10::Device output_device);
  // Resets variables to their initial values.
  void reset();

  std::vector<LayerRecord> layers();

  const std::shared_ptr<Program>& program() const noexcept { return program_; }

 private:
  // The latest run may still be pending; the request is free when it has ended.
  void wait_for_run();

  std::shared_ptr<Program> program_;
  std::mutex mutex_;
  program::Request request_;
  std::shared_ptr<std::atomic<bool>> is_running_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace npu
