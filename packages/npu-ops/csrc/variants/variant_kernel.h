// An op with two bodies: a program of its own for the device, or the host kernel on aliases.
//
// Which of them serves a signature is decided once, by the chooser (npu_ops.variants), and
// remembered in program_cache.h.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/boxing/KernelFunction.h>

#include "fallback.h"
#include "op_plan.h"
#include "variants/program_cache.h"

namespace npu::ops::variants {

// Whether calls of an op ask for a choice. Off costs one load, so that a device whose host kernels
// serve every call pays nothing.
enum class Activity : std::uint8_t { kUnresolved, kOff, kOn };

class VariantKernel final : public c10::OperatorKernel {
 public:
  explicit VariantKernel(OpPlan& plan);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  OpPlan& plan_;
  HostKernel host_;
  std::atomic<Activity>& activity_;
  const bool gives_statistics_;  // has a result that only its gradient reads
  const bool takes_indices_;     // that its program would not check
};

// What Python gives. Both are called without any lock held.
struct Deciders {
  // Called before the first choice: says by set_active which ops ask for choices.
  void (*resolve)();
  // Decides for a call about which nothing is remembered. Never null. `needs_grad` is false for ops
  // that compute the same for a gradient as without.
  ProgramCache::Found (*choose)(const OpPlan& plan, at::ArrayRef<c10::IValue> arguments,
                                bool needs_grad);
};
void set_deciders(Deciders deciders);

// Says that an op has two bodies, though another kernel stands in front of them; is_declared tells.
void declare(OpPlan& plan);
bool is_declared(const std::string& op_name);

// Names of the ops with two bodies ("aten::mm"), sorted.
std::vector<std::string> variant_ops();

// Sets which ops ask for choices; false for a name that has no program body.
bool set_active(const std::string& op_name, bool is_active);
// Whether this thread is choosing a body, or measuring: its ops run on the host kernels. Returns
// the previous value.
bool exchange_choosing(bool is_choosing) noexcept;

// How many calls programs have served in this process.
std::uint64_t program_runs();

// Forgets choices and activity: settings have changed.
void reset_choices();

}  // namespace npu::ops::variants
