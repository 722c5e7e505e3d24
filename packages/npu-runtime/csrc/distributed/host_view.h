// CPU tensors for Gloo in place of npu tensors: views of the same bytes, or contiguous copies.
//
// gloo_forwarder.cpp has the collectives. The aliases of CPU kernels are in npu-ops, a package
// above this one.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace npu::distributed {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

// Contiguous copies of non-contiguous outputs: Gloo requires contiguous memory. They are written
// back once, after Gloo is done.
class OutputCopies {
 public:
  at::Tensor contiguous(const at::Tensor& view);
  void write_back();

 private:
  std::mutex mutex_;
  std::vector<std::pair<at::Tensor, at::Tensor>> views_and_copies_;
};

// Contiguous CPU tensors with the values of npu tensors: views of their bytes, or copies if they
// are not contiguous. Waits for the device's work on them. A view holds the npu memory and a host
// window on it, so its work may outlive every npu tensor.
//
// Throws Error [collective-layout] for tensors without strided memory and for outputs with
// overlapping elements, [capture-host-op] during graph capture, and errors of the awaited work.
at::Tensor host_input(const at::Tensor& tensor);
Tensors host_inputs(const Tensors& tensors);
TensorLists host_inputs(const TensorLists& lists);

// The same for outputs of Gloo; `copies.write_back()` completes the operation.
at::Tensor host_output(const at::Tensor& tensor, OutputCopies& copies);
Tensors host_outputs(const Tensors& tensors, OutputCopies& copies);
TensorLists host_outputs(const TensorLists& lists, OutputCopies& copies);

}  // namespace npu::distributed
