// Tensors in a layout that a kernel does not expect, and the sizes of nested ones.

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

void require_size_matrix(const Given& given, const at::Tensor& sizes, const char* name) {
  NPU_REQUIRE(given,
              sizes.layout() == at::kStrided && sizes.dim() == 2 && sizes.size(0) > 0 &&
                  sizes.is_contiguous(),
              name, " must be a contiguous matrix, a row of sizes per tensor; got ", sizes.sizes(),
              ". Pass what _nested_tensor_size() gives.");
}

}  // namespace

// self: its copy is made in the same memory layout, which compressed tensors do not have.
void functional_copy(const Given& given) {
  const at::Tensor self = given.tensor(0);
  NPU_REQUIRE(given, self.unsafeGetTensorImpl()->has_storage(), "self must be strided; got ",
              self.layout(), ". Call copy_ on a clone.");
}

// padded, cpu_nested_shape_example
void nested_from_padded(const Given& given) {
  require_size_matrix(given, given.tensor(1), "cpu_nested_shape_example");
}

// nested_size: a number stands for no tensors, and torch itself refuses a vector.
void nested_sizes(const Given& given) {
  if (given.tensor(0).dim() >= 2) require_size_matrix(given, given.tensor(0), "nested_size");
}

}  // namespace npu::ops::checks
