// Checks of tensor lists, sizes of nested tensors, and unexpected layouts.

#include <initializer_list>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

// The tensors of an optimizer's state, one per parameter and of its shape.
void require_alike(const Given& given, std::size_t index, const char* name) {
  const std::vector<at::Tensor> parameters = given.tensors(0);
  if (parameters.empty() || !is_computed(parameters.front())) return;
  const std::vector<at::Tensor> others = given.tensors(index);
  NPU_REQUIRE(given, others.size() == parameters.size(), "`", name,
              "` must hold one tensor per parameter (", parameters.size(), "), got ", others.size(),
              ". Pass lists of the same length.");
  for (std::size_t i = 0; i < others.size(); ++i) {
    NPU_REQUIRE(given,
                others[i].sizes() == parameters[i].sizes() && has_room(others[i]) &&
                    has_room(parameters[i]),
                "`", name, "` must hold dense tensors of the shapes of the parameters, got ",
                others[i].sizes(), " for ", parameters[i].sizes(),
                ". Pass tensors of equal shapes.");
  }
}

void require_steps(const Given& given, std::size_t index) {
  if (given.tensors(0).empty() || !is_computed(given.tensors(0).front())) return;
  const std::vector<at::Tensor> steps = given.tensors(index);
  NPU_REQUIRE(given, steps.size() == given.tensors(0).size(),
              "`state_steps` must hold one tensor per parameter (", given.tensors(0).size(),
              "), got ", steps.size(), ". Pass lists of the same length.");
  for (const at::Tensor& step : steps)
    NPU_REQUIRE(given, step.numel() == 1, "`state_steps` must hold numbers, got ", step.sizes(),
                ". Pass tensors of one element.");
}

}  // namespace

// tensors
void joined(const Given& given) {
  NPU_REQUIRE(given, !given.tensors(0).empty(),
              "`tensors` must hold at least one tensor, got none. Pass the tensors to stack.");
}

// self, src
void copied_list(const Given& given) {
  const std::size_t there = given.tensors(0).size();
  const std::size_t here = given.tensors(1).size();
  NPU_REQUIRE(given, here <= there, "`self` and `src` must be lists of the same length, got ",
              there, ", ", here, ". Pass one source per tensor.");
}

// self, grads, momentum_buffer_list, weight_decay, momentum
void fused_sgd(const Given& given) {
  require_alike(given, 1, "grads");
  if (!given.tensors(2).empty() || given.number(4) != 0) {
    require_alike(given, 2, "momentum_buffer_list");
  }
}

// self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, ..., amsgrad
void fused_adam(const Given& given) {
  constexpr std::size_t kAmsgrad = 11;
  require_alike(given, 1, "grads");
  require_alike(given, 2, "exp_avgs");
  require_alike(given, 3, "exp_avg_sqs");
  if (given.flag(kAmsgrad)) require_alike(given, 4, "max_exp_avg_sqs");
  require_steps(given, 5);
}

// self, grads, state_sums, state_steps
void fused_adagrad(const Given& given) {
  require_alike(given, 1, "grads");
  require_alike(given, 2, "state_sums");
  require_steps(given, 3);
}

namespace {

void require_size_matrix(const Given& given, const at::Tensor& sizes, const char* name) {
  NPU_REQUIRE(given,
              sizes.layout() == at::kStrided && sizes.dim() == 2 && sizes.size(0) > 0 &&
                  sizes.is_contiguous(),
              "`", name, "` must be a contiguous matrix, with a row of sizes per tensor, got ",
              sizes.sizes(), ". Pass the result of _nested_tensor_size().");
}

}  // namespace

// self: its copy has the same memory layout, which compressed tensors do not have.
void functional_copy(const Given& given) {
  const at::Tensor self = given.tensor(0);
  NPU_REQUIRE(given, self.unsafeGetTensorImpl()->has_storage(), "`self` must be strided, got ",
              self.layout(), ". Call copy_ on a clone.");
}

// padded, cpu_nested_shape_example
void nested_from_padded(const Given& given) {
  require_size_matrix(given, given.tensor(1), "cpu_nested_shape_example");
}

// nested_size: a number has no tensors, and torch rejects a vector itself.
void nested_sizes(const Given& given) {
  if (given.tensor(0).dim() >= 2) require_size_matrix(given, given.tensor(0), "nested_size");
}

}  // namespace npu::ops::checks
