// An op with two variants: a program for the device, or the host kernel on aliases.
//
// npu_ops.variants selects one for each signature once; program_cache.h caches it.
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

// Whether calls of an op are subject to a choice. Checking costs one load, for devices that run
// every call on host kernels.
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

// Python callbacks, called without locks.
struct Deciders {
  // Called before the first choice: sets the active ops by set_active.
  void (*resolve)();
  // Decides for an uncached call. Never null. `needs_grad` is false for ops whose result does not
  // depend on it.
  ProgramCache::Found (*choose)(const OpPlan& plan, at::ArrayRef<c10::IValue> arguments,
                                bool needs_grad);
};
void set_deciders(Deciders deciders);

// Declares an op with two variants behind another kernel; see is_declared.
void declare(OpPlan& plan);
bool is_declared(const std::string& op_name);

// Names of the ops with two variants ("aten::mm"), sorted.
std::vector<std::string> variant_ops();

// Sets the active ops; false for a name without a program variant.
bool set_active(const std::string& op_name, bool is_active);
// Whether this thread is choosing or measuring: its ops run on the host kernels. Returns the
// previous value.
bool exchange_choosing(bool is_choosing) noexcept;

// Number of calls that ran as programs in this process.
std::uint64_t program_runs();

// Resets choices and active ops after a change of settings.
void reset_choices();

}  // namespace npu::ops::variants
