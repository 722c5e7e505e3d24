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

// The CPU tensor over the bytes of an npu tensor, of its shape, strides and dtype. It holds the npu
// memory, so the work that has it may outlive every npu tensor. A tensor that is not on npu is
// returned as it is. Throws Error [collective-layout] for what has no strided memory.
//
// Waiting for work that is pending on the device is the caller's: see wait_for_device.
at::Tensor host_view(const at::Tensor& tensor);
Tensors host_views(const Tensors& tensors);
TensorLists host_views(const TensorLists& lists);

// Waits until nothing is pending on the devices of the tensors: Gloo reads and writes from threads
// of its own, which no stream knows.
void wait_for_device(const Tensors& tensors);
void wait_for_device(const TensorLists& lists);

}  // namespace npu::distributed
