// What Gloo gets in place of an npu tensor: a CPU tensor over the same bytes, or a contiguous copy.
//
// The collectives that use it are in gloo_forwarder.cpp. The aliases on which CPU kernels run are
// npu-ops's, a package above this one.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace npu::distributed {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

// Contiguous copies of outputs that are not contiguous: Gloo takes memory in order, whatever the
// strides are. They are written back once, after Gloo is done.
class OutputCopies {
 public:
  at::Tensor contiguous(const at::Tensor& view);
  void write_back();

 private:
  std::mutex mutex_;
  std::vector<std::pair<at::Tensor, at::Tensor>> views_and_copies_;
};

// The contiguous CPU tensors with the values of npu tensors: views of their bytes, or copies where
// the strides are others. Made after waiting for the device's work on them, a view holds the npu
// memory and a host window on it, so the work that has it may outlive every npu tensor.
//
// Throws Error [collective-layout] for what has no strided memory and for outputs of which several
// elements share an address, [capture-host-op] while the thread captures a graph, and what went
// wrong in the work that was waited for.
at::Tensor host_input(const at::Tensor& tensor);
Tensors host_inputs(const Tensors& tensors);
TensorLists host_inputs(const TensorLists& lists);

// The same for tensors that Gloo writes to; `copies.write_back()` completes the operation.
at::Tensor host_output(const at::Tensor& tensor, OutputCopies& copies);
Tensors host_outputs(const Tensors& tensors, OutputCopies& copies);
TensorLists host_outputs(const TensorLists& lists, OutputCopies& copies);

}  // namespace npu::distributed
