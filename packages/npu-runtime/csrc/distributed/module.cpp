// The extension module of torch.distributed's backend; loaded when a process group is created.
//
// Separate from _C, so that programs without communication do not load it.
#include <torch/csrc/utils/pybind.h>

#include "distributed/gloo_forwarder.h"

namespace npu::distributed {
namespace {

c10::intrusive_ptr<c10d::Backend> forward_to(c10::intrusive_ptr<c10d::Backend> gloo) {
  return c10::make_intrusive<GlooForwarder>(std::move(gloo));
}

}  // namespace
}  // namespace npu::distributed

PYBIND11_MODULE(_distributed, module) {
  module.def("forward_to", &npu::distributed::forward_to);
}
