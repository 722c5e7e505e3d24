// relu(beta * input + alpha * mat1 @ mat2).

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>

#include "check.h"
#include "ops.h"

namespace npu::ops::fused {
namespace {

bool can_expand(const at::Tensor& input, const c10::SymInt& rows, const c10::SymInt& columns) {
  if (input.dim() > 2) return false;
  if (input.dim() >= 1 && input.sym_size(-1) != 1 && input.sym_size(-1) != columns) return false;
  return input.dim() < 2 || input.sym_size(0) == 1 || input.sym_size(0) == rows;
}

void check_addmm_relu(const at::Tensor& input, const at::Tensor& mat1, const at::Tensor& mat2) {
  check_float("addmm_relu", "mat1", mat1);
  check_rank("addmm_relu", "mat1", mat1, 2, "(rows, inner)");
  check_rank("addmm_relu", "mat2", mat2, 2, "(inner, columns)");
  TORCH_CHECK_VALUE(
      mat1.sym_size(1) == mat2.sym_size(0),
      "npu.addmm_relu: `mat1` must have as many columns as `mat2` has rows, got mat1 ",
      shape_of(mat1), ", mat2 ", shape_of(mat2), ". Pass a mat2 of ", mat1.sym_size(1),
      " rows. [op-shape]");
  check_same_dtype("addmm_relu", "mat2", mat2, "mat1", mat1);
  check_same_dtype("addmm_relu", "input", input, "mat1", mat1);
  TORCH_CHECK_VALUE(can_expand(input, mat1.sym_size(0), mat2.sym_size(1)),
                    "npu.addmm_relu: `input` must expand to the product, got input ",
                    shape_of(input), ", product (", mat1.sym_size(0), ", ", mat2.sym_size(1),
                    "). Pass a bias of length ", mat2.sym_size(1), ". [op-shape]");
}

}  // namespace

at::Tensor addmm_relu(const at::Tensor& input, const at::Tensor& mat1, const at::Tensor& mat2,
                      const at::Scalar& beta, const at::Scalar& alpha) {
  check_addmm_relu(input, mat1, mat2);
  return at::addmm(input, mat1, mat2, beta, alpha).relu_();
}

at::Tensor addmm_relu_fake(const at::Tensor& input, const at::Tensor& mat1, const at::Tensor& mat2,
                           const at::Scalar& beta, const at::Scalar& alpha) {
  check_addmm_relu(input, mat1, mat2);
  return at::empty_symint({mat1.sym_size(0), mat2.sym_size(1)}, mat1.options());
}

}  // namespace npu::ops::fused
