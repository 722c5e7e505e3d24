// CPU tensors over npu memory, each holding the storage it looks at.
#include "distributed/host_view.h"

#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>

#include "npu/device.h"
#include "npu/error.h"

namespace npu::distributed {

namespace {

bool is_npu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_privateuseone();
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (!is_npu(tensor)) return tensor;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() ||
      tensor.is_neg()) {
    throw Error(
        ErrorKind::kInput, "collective-layout",
        "torch.distributed: a collective on npu takes strided tensors, neither quantized nor "
        "lazily conjugated or negated; got layout " +
            std::string(c10::str(tensor.layout())) + ", dtype " +
            c10::toString(tensor.scalar_type()) +
            ". Pass tensor.to_dense(), tensor.dequantize() or tensor.resolve_conj().");
  }
  // Writable for inputs as well: memory shared by copy-on-write becomes the tensor's own here, not
  // under Gloo's hands.
  void* data = tensor.mutable_data_ptr();
  return at::from_blob(
      data, tensor.sizes(), tensor.strides(), [storage = tensor.storage()](void*) {},
      at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
}

Tensors host_views(const Tensors& tensors) {
  Tensors views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    views.push_back(host_view(tensor));
  return views;
}

TensorLists host_views(const TensorLists& lists) {
  TensorLists views;
  views.reserve(lists.size());
  for (const Tensors& tensors : lists)
    views.push_back(host_views(tensors));
  return views;
}

void wait_for_device(const Tensors& tensors) {
  c10::DeviceIndex waited_for = -1;  // the tensors of one call share a device, all but always
  for (const at::Tensor& tensor : tensors) {
    if (!is_npu(tensor) || tensor.device().index() == waited_for) continue;
    waited_for = tensor.device().index();
    synchronize(waited_for);
  }
}

void wait_for_device(const TensorLists& lists) {
  for (const Tensors& tensors : lists)
    wait_for_device(tensors);
}

}  // namespace npu::distributed
