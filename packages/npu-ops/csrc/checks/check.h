// Argument checks: the arguments of a call, and the report of a violated rule.
//
// table.cpp maps ops to checks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

namespace npu::ops::checks {

// The arguments of a call by their position in the schema.
class Given {
 public:
  Given(const std::string& op, at::ArrayRef<c10::IValue> values) : op_(op), values_(values) {}

  const std::string& op() const { return op_; }
  // Undefined for None.
  at::Tensor tensor(std::size_t index) const;
  std::vector<at::Tensor> tensors(std::size_t index) const;
  std::vector<std::int64_t> integers(std::size_t index) const;
  std::int64_t integer(std::size_t index) const;
  double number(std::size_t index) const { return values_[index].toScalar().toDouble(); }
  bool flag(std::size_t index) const { return values_[index].toBool(); }

 private:
  const std::string& op_;
  at::ArrayRef<c10::IValue> values_;
};

// Whether the memory from a tensor's first element is contiguous, as kernels with a plain pointer
// require.
bool has_room(const at::Tensor& tensor);

// Whether kernels support the dtype and layout of a tensor: half, bfloat16, float and double. Torch
// rejects others itself, with its own exception class.
bool is_computed(const at::Tensor& tensor);
// The same for kernels of float and double, or of these and their complex numbers.
bool is_single_or_double(const at::Tensor& tensor);
bool is_linear_algebra(const at::Tensor& tensor);
// Whether kernels use its numbers as indices.
bool is_index(const at::Tensor& tensor);

void require_length(const Given& given, std::size_t index, const char* name, std::size_t length);

}  // namespace npu::ops::checks

// The same where torch's kernels of the op's other forms raise an IndexError.
#define NPU_REQUIRE_INDEX(given, condition, ...) \
  TORCH_CHECK_INDEX(condition, (given).op(), ": ", __VA_ARGS__, " [argument-contract]")

// Reports the op, the rule, the received value and the fix. A RuntimeError, like torch's checks of
// the same rules on other paths.
#define NPU_REQUIRE(given, condition, ...) \
  TORCH_CHECK(condition, (given).op(), ": ", __VA_ARGS__, " [argument-contract]")
