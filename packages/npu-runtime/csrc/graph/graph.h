// Captured steps: programs recorded with the memory they were bound to, and run again without
// binding.
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

// What a graph does about weights that change after the capture. A program may hold them as
// constants, or read their memory.
enum class Weights {
  kRefuse,  // a replay is an error that names one
  kFollow,  // programs read their memory: they are captured without constants
};

class NPU_API Graph {
 public:
  explicit Graph(Weights weights = Weights::kRefuse) : weights_(weights) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // Starts to record the programs that this thread runs. They run as well, so that values are at
  // hand. Throws Error [capture-state] when this thread captures already, or this graph was
  // captured before.
  //
  // What the thread allocates until capture_end lies in the region of the pool that `pool` names;
  // {0, 0} makes one.
  void capture_begin(c10::MempoolId_t pool = {0, 0});
  void capture_end();

  // Leaves the capture and comes back to it, for work in between that is not to be replayed.
  void pause();
  void resume();

  // Runs what was recorded, in order, on the current stream: it reads and writes the tensors of the
  // capture. Throws Error [capture-stale] when a tensor that a program holds as a constant has
  // changed since, or one that it reads has other memory and the graph does not follow.
  void replay();

  // Forgets what was recorded, and lets go of its memory.
  void reset();

  std::size_t size() const noexcept { return nodes_.size(); }

  // The region of the capture. Throws Error [capture-state] before there was one.
  c10::MempoolId_t pool() const;

  // One line for each program: its name and what goes in and out.
  std::string describe() const;

  // The graph that this thread captures; nullptr when there is none.
  static Graph* capturing() noexcept;

  bool follows_weights() const noexcept { return weights_ == Weights::kFollow; }

  // Told during the capture, before or after the run: the program that runs now holds this tensor
  // as a constant. `name` is for the error. Precondition: the tensor counts its versions.
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
    c10::Stream stream;                     // of its latest run, which its next one must not meet
    std::vector<const void*> addresses[2];  // that inputs and outputs are bound to

    void note_addresses();
  };

  void stop_capture();
  void check_dependencies() const;
  // Rebinds what has other memory, or throws.
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
  std::unordered_set<const c10::TensorImpl*> depended_on_;  // while it captures
};

}  // namespace npu
