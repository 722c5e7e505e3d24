// Argument checks of fused ops: text of shapes and dtypes, and shared checks. An op's file has its
// requirements; its kernel and its fake call the same function, so both report the same errors.
#pragma once

#include <sstream>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace npu::ops::fused {

// "(4, 16, 1024)", also of a fake tensor with symbolic sizes.
inline std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << '(';
  const auto sizes = tensor.sym_sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text << (i == 0 ? "" : ", ") << sizes[i];
  text << (sizes.size() == 1 ? ",)" : ")");
  return text.str();
}

// "torch.float32"; "None" for None.
inline std::string dtype_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "None";
  return "torch." + std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

inline void check_float(const char* op, const char* name, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK_VALUE(
      type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble,
      "npu.", op, ": `", name, "` must be float32, bfloat16, float16 or float64, got ",
      dtype_of(tensor), ". Convert it with .to(). [op-dtype]");
}

inline void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                             const char* like_name, const at::Tensor& like) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type(), "npu.", op, ": `", name,
                    "` must have the dtype of `", like_name, "`, got ", name, " ", dtype_of(tensor),
                    ", ", like_name, " ", dtype_of(like), ". Convert one with .to(). [op-dtype]");
}

inline void check_rank(const char* op, const char* name, const at::Tensor& tensor,
                       std::int64_t rank, const char* axes) {
  TORCH_CHECK_VALUE(tensor.dim() == rank, "npu.", op, ": `", name, "` must have ", rank, " axes ",
                    axes, ", got ", name, " ", shape_of(tensor),
                    ". Add or flatten axes with .reshape(). [op-shape]");
}

}  // namespace npu::ops::fused
