// Facts about one op that the fallback needs, read once from its schema.
//
// fallback.cpp runs a call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "alias.h"

namespace npu::ops::checks {
class Given;
}

namespace npu::ops {

enum class ArgumentKind : std::uint8_t {
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kDevice,
  kGenerator
};

struct ArgumentPlan {
  std::uint16_t index;
  ArgumentKind kind;
  bool is_written;
  bool may_be_on_cpu;  // even when it is not zero-dim, as on CUDA (index lists, lengths)
};

// Whether the host kernel may run an op. Unseen ops are decided at their first call (host_use.h).
enum class HostUse : std::uint8_t { kUnseen, kAllowed };

enum BoxedPath : std::uint8_t { kForced = 1, kAsksForChoice = 2 };

struct OpPlan {
  explicit OpPlan(const c10::OperatorHandle& op);

  c10::OperatorHandle op;
  std::string name;                     // "aten::add.Tensor"
  std::vector<ArgumentPlan> arguments;  // the arguments that the fallback rewrites, in schema order
  std::size_t argument_count;
  std::size_t return_count;
  GradFlag grad;
  bool has_host_kernel = false;  // is registered for npu with its CPU kernel on aliases
  // Validates arguments that its CPU kernel trusts (checks/table.h); null for most ops.
  void (*check)(const checks::Given& given);
  bool is_view;  // gives a view of an argument and computes nothing
  std::atomic<std::uint64_t> call_count{0};
  std::atomic<HostUse> host_use{HostUse::kUnseen};
  // Reasons to send an unboxed kernel's calls (hot/kernels.h) to the boxed path: bits of BoxedPath.
  std::atomic<std::uint8_t> boxed_path{0};
};

// The plan of an op; created at the first request, and again after a library unregistered the op
// and another defined it. It lasts until the process ends; its handle as long as the op.
OpPlan& plan_of(const c10::OperatorHandle& op);

// Whether a torch op uses its CPU kernel on aliases, always or if there is no program.
bool has_host_kernel(const std::string& name);

// Calls per op since the last reset, for called ops, most frequent first.
std::vector<std::pair<std::string, std::uint64_t>> fallback_counts();
void reset_fallback_counts();

// Names of all ops with a plan: torch ops with a CPU kernel, and called ops.
std::vector<std::string> known_ops();

// Sends an op's calls to its CPU kernel on aliases, or to its unboxed kernel again. False if torch
// has no such op.
bool force_host(const std::string& name, bool is_forced);

// Marks every op unseen again: the host rules have changed.
void reset_host_use();

}  // namespace npu::ops
