// Checks of Fourier transforms, distances and solvers: axes in range, and matching matrices.

#include <algorithm>

#include <ATen/ExpandUtils.h>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

// Torch's public functions count axes from the front before they get here.
void require_axes(const Given& given) {
  const std::int64_t rank = given.tensor(0).dim();
  const std::vector<std::int64_t> axes = given.integers(1);
  NPU_REQUIRE(given,
              std::all_of(axes.begin(), axes.end(),
                          [&](std::int64_t axis) { return axis >= 0 && axis < rank; }),
              "`dim` must be from 0 to ", rank - 1, ", got ", c10::IntArrayRef(axes),
              ". Call torch.fft, which also accepts negative axes.");
}

}  // namespace

// self, dim, normalization, onesided, out
void fourier_of_real(const Given& given) {
  require_axes(given);
  if (!given.op().ends_with(".out") || given.flag(3)) return;
  const at::Tensor self = given.tensor(0);
  const at::Tensor out = given.tensor(4);
  NPU_REQUIRE(
      given,
      !self.is_floating_point() || out.scalar_type() == c10::toComplexType(self.scalar_type()),
      "`out` must be complex, like the result of ", self.scalar_type(), ", got ", out.scalar_type(),
      ". Create it with the dtype of the result.");
}

// self, dim
void fourier(const Given& given) {
  require_axes(given);
}

// grad, x1, x2, p, cdist
void distances_backward(const Given& given) {
  const at::Tensor x1 = given.tensor(1);
  const at::Tensor x2 = given.tensor(2);
  if (!is_single_or_double(x1) || x1.dim() < 2 || x2.dim() < 2) return;  // torch rejects it
  const std::vector<std::int64_t> batch =
      at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  const std::int64_t pairs = c10::multiply_integers(batch) * x1.size(-2) * x2.size(-2);
  if (pairs == 0 || x1.size(-1) == 0) return;
  NPU_REQUIRE(given, x1.size(-1) == x2.size(-1), "`x1` and `x2` must have the same columns, got ",
              x1.sizes(), ", ", x2.sizes(), ". Pass the values from the forward pass.");
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor distances = given.tensor(4);
  NPU_REQUIRE(given, gradient.numel() == pairs && distances.numel() == pairs,
              "`grad` and `cdist` must hold one element per pair of rows (", pairs, "), got ",
              gradient.sizes(), ", ", distances.sizes(), ". Pass the result and its gradient.");
}

// grad, self, p, pdist
void own_distances_backward(const Given& given) {
  const at::Tensor self = given.tensor(1);
  if (!is_single_or_double(self) || self.dim() < 2) return;  // torch rejects it
  NPU_REQUIRE(given, self.dim() == 2, "`self` must be a matrix, got ", self.sizes(),
              ". Pass one batch at a time.");
  const std::int64_t rows = self.size(0);
  const std::int64_t pairs = rows * (rows - 1) / 2;
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor distances = given.tensor(3);
  NPU_REQUIRE(given, gradient.dim() == 1 && gradient.numel() == pairs && distances.numel() == pairs,
              "`grad` and `pdist` must hold one element per pair of rows (", pairs, "), got ",
              gradient.sizes(), ", ", distances.sizes(), ". Pass the result and its gradient.");
}

// self, A
void cholesky_solve(const Given& given) {
  const at::Tensor right = given.tensor(0);
  const at::Tensor factor = given.tensor(1);
  if (!is_linear_algebra(right) || right.dim() < 2 || factor.dim() < 2) return;  // torch rejects it
  NPU_REQUIRE(
      given,
      factor.size(-1) == factor.size(-2) && right.size(-2) == factor.size(-1) &&
          right.sizes().slice(0, right.dim() - 2) == factor.sizes().slice(0, factor.dim() - 2),
      "`A` must be square, with as many rows and batches as `self`, got self ", right.sizes(),
      ", A ", factor.sizes(), ". Call torch.cholesky_solve, which broadcasts.");
}

}  // namespace npu::ops::checks
