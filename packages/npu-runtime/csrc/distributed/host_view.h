// What Gloo gets in place of an npu tensor: a CPU tensor over the same bytes.
//
// The collectives that use it are in gloo_forwarder.cpp. The aliases on which CPU kernels run are
// npu-ops's, a package above this one.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace npu::distributed {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

// The CPU tensor over the bytes of an npu tensor, of its shape, strides and dtype. Made after
// waiting for the device's work on them, it holds the npu memory and a host window on it, so the
// work that has it may outlive every npu tensor. A tensor that is not on npu is returned as it is.
//
// Throws Error [collective-layout] for what has no strided memory, [capture-host-op] while the
// thread captures a graph, and what went wrong in the work that was waited for.
at::Tensor host_view(const at::Tensor& tensor);
Tensors host_views(const Tensors& tensors);
TensorLists host_views(const TensorLists& lists);

}  // namespace npu::distributed
