// Captured steps: programs recorded with the memory they were bound to, and run again without
// binding.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include "npu/capture.h"
#include "npu/export.h"
#include "npu/program.h"

namespace npu {

class NPU_API Graph {
 public:
  ~Graph();

  // Starts to record the programs that this thread runs. They run as well, so that values are at
  // hand. Throws Error [capture-state] when this thread captures already, or this graph was
  // captured before.
  //
  // What the thread allocates until capture_end lies in the region of the pool that `pool` names;
  // {0, 0} makes one.
  void capture_begin(c10::MempoolId_t pool = {0, 0});
  void capture_end();

  // Runs what was recorded, in order, on the current stream: it reads and writes the tensors of the
  // capture.
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

  // A run during the capture.
  std::vector<at::Tensor> add(Program& program, const std::vector<at::Tensor>& inputs,
                              const GivenOutputs& outputs, c10::Device output_device);

 private:
  struct Node {
    std::shared_ptr<Program> program;
    program::Request request;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    c10::Stream stream;  // of its latest run, which its next one must not meet
  };

  void stop_capture();
  void release_pool() noexcept;

  bool is_captured_ = false;
  c10::DeviceIndex device_index_ = -1;  // of the programs
  c10::DeviceIndex pool_device_ = -1;
  c10::MempoolId_t pool_{0, 0};
  std::vector<Node> nodes_;
};

}  // namespace npu
