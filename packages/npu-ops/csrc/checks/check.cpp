// Reads the arguments of a call; rules shared by several checks.

#include "checks/check.h"

namespace npu::ops::checks {

at::Tensor Given::tensor(std::size_t index) const {
  const c10::IValue& value = values_[index];
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

std::vector<at::Tensor> Given::tensors(std::size_t index) const {
  return values_[index].toTensorVector();
}

std::vector<std::int64_t> Given::integers(std::size_t index) const {
  const c10::IValue& value = values_[index];
  if (value.isIntList()) return value.toIntVector();
  std::vector<std::int64_t> known;
  for (const c10::SymInt& each : value.toSymIntVector())
    known.push_back(each.guard_int(__FILE__, __LINE__));
  return known;
}

std::int64_t Given::integer(std::size_t index) const {
  const c10::IValue& value = values_[index];
  return value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
}

bool has_room(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_contiguous()) return true;
  const auto elements =
      static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.dtype().itemsize());
  return tensor.numel() <= elements - tensor.storage_offset();
}

bool is_single_or_double(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return false;
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

bool is_computed(const at::Tensor& tensor) {
  if (is_single_or_double(tensor)) return true;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return false;
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool is_linear_algebra(const at::Tensor& tensor) {
  if (is_single_or_double(tensor)) return true;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return false;
  return tensor.scalar_type() == at::kComplexFloat || tensor.scalar_type() == at::kComplexDouble;
}

bool is_index(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided &&
         (tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt);
}

void require_length(const Given& given, std::size_t index, const char* name, std::size_t length) {
  const std::vector<std::int64_t> values = given.integers(index);
  NPU_REQUIRE(given, values.size() == length, "`", name, "` must have ", length, " elements, got ",
              c10::IntArrayRef(values), ". Pass one for each side or axis.");
}

}  // namespace npu::ops::checks
