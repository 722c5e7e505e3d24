// Rotates pairs of features by an angle per position. Heads are read in place; the result is
// contiguous. The loop is in vector/rotary_embedding.cpp.

#include <ATen/ops/empty.h>

#include "check.h"
#include "ops.h"
#include "vector/kernels.h"

namespace npu::ops::fused {
namespace {

constexpr const char* kRotaryEmbedding = "rotary_embedding";

void check_table(const char* name, const at::Tensor& table, const at::Tensor& x) {
  check_float(kRotaryEmbedding, name, table);
  const bool has_rank = table.dim() == 2 || table.dim() == 3;
  const bool is_valid =
      has_rank && table.sym_size(-2) == x.sym_size(2) && table.sym_size(-1) * 2 <= x.sym_size(3) &&
      (table.dim() == 2 || table.sym_size(0) == 1 || table.sym_size(0) == x.sym_size(0));
  TORCH_CHECK_VALUE(is_valid, "npu.rotary_embedding: `", name,
                    "` must be (length, half) or (batch, length, half), half at most half of the "
                    "head size, got ",
                    name, " ", shape_of(table), ", x (batch, heads, length, head size) ",
                    shape_of(x), ". Pass one angle per pair, of length ", x.sym_size(2),
                    ". [op-shape]");
}

void check_rotary_embedding(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  check_float(kRotaryEmbedding, "x", x);
  check_rank(kRotaryEmbedding, "x", x, 4, "(batch, heads, length, head size)");
  check_table("cos", cos, x);
  check_table("sin", sin, x);
  TORCH_CHECK_VALUE(cos.sym_sizes() == sin.sym_sizes(),
                    "npu.rotary_embedding: `cos` and `sin` must have the same shape, got cos ",
                    shape_of(cos), ", sin ", shape_of(sin), ". Make both from the same angles. ",
                    "[op-shape]");
}

}  // namespace

at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool interleaved) {
  check_rotary_embedding(x, cos, sin);
  const bool is_row_dense = x.stride(3) == 1 || x.size(3) == 1;
  const at::Tensor rows = is_row_dense ? x : x.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor c = cos.to(type).contiguous(), s = sin.to(type).contiguous();
  const std::int64_t half = c.size(-1);
  const bool is_per_item = c.dim() == 3 && c.size(0) > 1;
  vector_kernels().rotary({rows.const_data_ptr(),
                           c.const_data_ptr(),
                           s.const_data_ptr(),
                           y.data_ptr(),
                           x.size(0),
                           x.size(1),
                           x.size(2),
                           x.size(3),
                           half,
                           {rows.stride(0), rows.stride(1), rows.stride(2)},
                           {y.stride(0), y.stride(1), y.stride(2)},
                           is_per_item ? x.size(2) * half : 0,
                           interleaved},
                          x.scalar_type());
  return y;
}

at::Tensor rotary_embedding_fake(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                 bool interleaved) {
  check_rotary_embedding(x, cos, sin);
  return at::empty_symint(x.sym_sizes(), x.options());
}

}  // namespace npu::ops::fused
