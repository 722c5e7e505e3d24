// The zero-copy fallback: runs an op's CPU kernel on aliases of its npu arguments.
//
// Aliases are in alias.h, facts about ops in op_plan.h.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "op_plan.h"

namespace npu::ops {

// The kernel of one op, with its plan.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(OpPlan& plan) : plan_(plan) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  OpPlan& plan_;
};

// The check of a composite op, before the composition: runs on the npu tensors, under and below
// autograd.
class CheckedComposition final : public c10::OperatorKernel {
 public:
  explicit CheckedComposition(OpPlan& plan) : plan_(plan) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  OpPlan& plan_;
};

// Like HostKernel, for ops registered after this library (other wheels' ops with a CPU kernel).
void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace npu::ops
