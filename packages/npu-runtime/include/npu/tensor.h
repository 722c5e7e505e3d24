// Whether a tensor is on npu.
#pragma once

#include <ATen/core/Tensor.h>

namespace npu {

inline bool is_npu(const at::Tensor& tensor) noexcept {
  return tensor.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}

}  // namespace npu
