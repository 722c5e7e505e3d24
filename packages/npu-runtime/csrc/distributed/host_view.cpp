// CPU tensors over npu memory, which hold its storage, and copies of non-contiguous tensors.
#include "distributed/host_view.h"

#include <memory>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>

#include "npu/capture.h"
#include "npu/error.h"
#include "npu/host_access.h"

namespace npu::distributed {

namespace {

// Resources of a view: the memory, and the host's access to it.
class Hold {
 public:
  explicit Hold(c10::Storage storage) : storage_(std::move(storage)), access_(storage_.data()) {}

 private:
  c10::Storage storage_;
  HostAccess access_;
};

void check(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() ||
      tensor.is_neg()) {
    throw Error(ErrorKind::kInput, "collective-layout",
                "torch.distributed: tensors of a collective on npu must be strided, and not "
                "quantized or lazily conjugated or negated, got layout " +
                    std::string(c10::str(tensor.layout())) + ", dtype " +
                    c10::toString(tensor.scalar_type()) +
                    ". Pass tensor.to_dense(), tensor.dequantize() or tensor.resolve_conj().");
  }
  if (is_capturing()) {
    throw Error(ErrorKind::kInput, "capture-host-op",
                "npu.NPUGraph: a collective runs on the host and cannot be captured; a replay "
                "would omit it. Call it before or after the captured step.");
  }
}

bool is_strided(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided;
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_privateuseone()) return tensor;
  check(tensor);
  // Writable for inputs as well: copy-on-write memory is copied here, not while Gloo works on it.
  void* data = tensor.mutable_data_ptr();
  auto hold = std::make_shared<Hold>(tensor.storage());
  return at::from_blob(
      data, tensor.sizes(), tensor.strides(), [hold](void*) {},
      at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
}

}  // namespace

at::Tensor OutputCopies::contiguous(const at::Tensor& view) {
  if (at::has_internal_overlap(view) == at::MemOverlap::Yes) {
    throw Error(ErrorKind::kInput, "collective-layout",
                "torch.distributed: results of a collective on npu must have a separate address "
                "for each element, got strides " +
                    c10::str(view.strides()) + " for shape " + c10::str(view.sizes()) +
                    ". Pass tensor.contiguous().");
  }
  at::Tensor copy = view.contiguous();
  const std::lock_guard lock(mutex_);
  views_and_copies_.emplace_back(view, copy);
  return copy;
}

void OutputCopies::write_back() {
  const std::lock_guard lock(mutex_);
  for (const auto& [view, copy] : std::exchange(views_and_copies_, {}))
    view.copy_(copy);
}

at::Tensor host_input(const at::Tensor& tensor) {
  at::Tensor view = host_view(tensor);
  return is_strided(view) ? view.contiguous() : view;
}

at::Tensor host_output(const at::Tensor& tensor, OutputCopies& copies) {
  at::Tensor view = host_view(tensor);
  return !is_strided(view) || view.is_contiguous() ? view : copies.contiguous(view);
}

Tensors host_inputs(const Tensors& tensors) {
  Tensors views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    views.push_back(host_input(tensor));
  return views;
}

TensorLists host_inputs(const TensorLists& lists) {
  TensorLists views;
  views.reserve(lists.size());
  for (const Tensors& tensors : lists)
    views.push_back(host_inputs(tensors));
  return views;
}

Tensors host_outputs(const Tensors& tensors, OutputCopies& copies) {
  Tensors views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    views.push_back(host_output(tensor, copies));
  return views;
}

TensorLists host_outputs(const TensorLists& lists, OutputCopies& copies) {
  TensorLists views;
  views.reserve(lists.size());
  for (const Tensors& tensors : lists)
    views.push_back(host_outputs(tensors, copies));
  return views;
}

}  // namespace npu::distributed
