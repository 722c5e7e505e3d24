// The zero-copy fallback: runs an op's CPU kernel on aliases of its npu arguments.
//
// Aliases themselves are in alias.h, what is known about an op in op_plan.h.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "op_plan.h"

namespace npu::ops {

// The kernel of one op: knows its plan without looking it up.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(OpPlan& plan) : plan_(plan) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  OpPlan& plan_;
};

// The check of an op that torch composes of others, in front of the composition: it runs on the
// npu tensors, under autograd as well as below it.
class CheckedComposition final : public c10::OperatorKernel {
 public:
  explicit CheckedComposition(OpPlan& plan) : plan_(plan) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  OpPlan& plan_;
};

// The same as HostKernel for ops that come later than this library (other wheels' ops with a CPU
// kernel).
void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace npu::ops
