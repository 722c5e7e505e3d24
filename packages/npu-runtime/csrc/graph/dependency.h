// A dependency of a captured program: a tensor with values that are constants of the program, with
// its version counter and memory, to detect changes.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace npu::graph {

// Keeps neither the tensor nor its memory alive: a freed weight cannot change.
class Dependency {
 public:
  // Precondition: the tensor is not an inference tensor; `name` is the owner's name for it.
  Dependency(std::string name, const at::Tensor& tensor);

  const std::string& name() const noexcept { return name_; }

  // Whether the tensor is unchanged. A write that torch does not count is not detected.
  bool is_current() const;

 private:
  std::string name_;
  c10::VariableVersion counter_;  // shared with the tensor and all views of it
  std::uint32_t version_;
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* data_;
  std::int64_t offset_;
};

}  // namespace npu::graph
