// Facts about one op that the fallback needs, read once from its schema.
//
// How a call is then carried out is in fallback.cpp.
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

// Whether the host kernel may serve an op. Unseen ones are asked about at their first call
// (host_use.h).
enum class HostUse : std::uint8_t { kUnseen, kAllowed };

enum BoxedPath : std::uint8_t { kForced = 1, kAsksForChoice = 2 };

struct OpPlan {
  explicit OpPlan(const c10::OperatorHandle& op);

  c10::OperatorHandle op;
  std::string name;                     // "aten::add.Tensor"
  std::vector<ArgumentPlan> arguments;  // those that the fallback rewrites, in schema order
  std::size_t argument_count;
  std::size_t return_count;
  GradFlag grad;
  bool has_host_kernel = false;  // is registered for npu with its CPU kernel on aliases
  // Checks what its CPU kernel trusts (checks/table.h); null for nearly all.
  void (*check)(const checks::Given& given);
  bool is_view;  // gives a view of an argument and computes nothing
  std::atomic<std::uint64_t> call_count{0};
  std::atomic<HostUse> host_use{HostUse::kUnseen};
  // Why an unboxed kernel of the op (hot/kernels.h) must leave a call to the boxed path: bits of
  // BoxedPath.
  std::atomic<std::uint8_t> boxed_path{0};
};

// The plan of an op; made at the first request, and anew when a library took the op back and one of
// that name was defined again. The object lasts until the process ends; its handle as long as the
// op.
OpPlan& plan_of(const c10::OperatorHandle& op);

// Whether an op of torch's is served by its CPU kernel on aliases, always or where no program is.
bool has_host_kernel(const std::string& name);

// Calls per op since the last reset, for ops that were called at all, most frequent first.
std::vector<std::pair<std::string, std::uint64_t>> fallback_counts();
void reset_fallback_counts();

// Names of all ops that have a plan: those of torch with a CPU kernel, and those that were called.
std::vector<std::string> known_ops();

// Sends an op's calls to its CPU kernel on aliases, or lets its unboxed kernel serve again. False
// when torch has no such op.
bool force_host(const std::string& name, bool is_forced);

// Every op is unseen again: what may run on the host has changed.
void reset_host_use();

}  // namespace npu::ops
