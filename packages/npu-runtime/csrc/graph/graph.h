// Captured steps: programs recorded with their bound memory, and run again without binding.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include "graph/dependency.h"
#include "npu/capture.h"
#include "npu/export.h"
#include "npu/program.h"

namespace npu {

// Handling of weights that change after the capture. A program may hold them as constants, or read
// their memory.
enum class Weights {
  kRefuse,  // a replay raises an error that names one
  kFollow,  // programs read their memory: captured without constants
};

class NPU_API Graph {
 public:
  explicit Graph(Weights weights = Weights::kRefuse) : weights_(weights) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // Starts recording the programs that this thread runs. They run as well, so that values are
  // available. Throws Error [capture-state] if this thread is capturing, or if this graph was
  // captured before.
  //
  // Until capture_end, the thread allocates in the region `pool`; {0, 0} creates one.
  void capture_begin(c10::MempoolId_t pool = {0, 0});
  void capture_end();

  // Pauses and resumes the capture, for work in between that is not replayed.
  void pause();
  void resume();

  // Runs the recorded programs, in order, on the current stream: they read and write the tensors of
  // the capture. Throws Error [capture-stale] if a tensor that a program holds as a constant has
  // changed, or one that it reads has other memory and the graph does not follow.
  void replay();

  // Drops the recording, and releases its memory.
  void reset();

  std::size_t size() const noexcept { return nodes_.size(); }

  // The region of the capture. Throws Error [capture-state] before there is one.
  c10::MempoolId_t pool() const;

  // One line per program: its name, inputs and outputs.
  std::string describe() const;

  // The graph that this thread is capturing, or nullptr.
  static Graph* capturing() noexcept;

  bool follows_weights() const noexcept { return weights_ == Weights::kFollow; }

  // Called during the capture, before or after the run: the current program holds this tensor as a
  // constant. `name` is for the error. Precondition: the tensor counts its versions.
  void depends_on(std::string name, const at::Tensor& tensor);

  // A run during the capture.
  std::vector<at::Tensor> add(Program& program, const std::vector<at::Tensor>& inputs,
                              const GivenOutputs& outputs, c10::Device output_device);

 private:
  struct Node {
    std::shared_ptr<Program> program;
    program::Request request;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    c10::Stream stream;                     // of its latest run, which the next must not overlap
    std::vector<const void*> addresses[2];  // bound to inputs and outputs

    void note_addresses();
  };

  void stop_capture();
  void check_dependencies() const;
  // Rebinds ports with other memory, or throws.
  void follow_memory(Node& node) const;
  [[noreturn]] static void raise_moved(const Node& node);
  void release_pool() noexcept;

  bool is_captured_ = false;
  c10::DeviceIndex device_index_ = -1;  // of the programs
  c10::DeviceIndex pool_device_ = -1;
  c10::MempoolId_t pool_{0, 0};
  std::vector<Node> nodes_;
  Weights weights_;
  std::vector<graph::Dependency> dependencies_;
  std::unordered_set<const c10::TensorImpl*> depended_on_;  // during the capture
};

}  // namespace npu
