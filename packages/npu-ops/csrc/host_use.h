// Permission of an op to run on the host: requested at its first call, then kept in its plan.
//
// The rules (NPU_STRICT, NPU_FALLBACK_OPS, the log) are in npu_ops.fallback.
#pragma once

#include <optional>
#include <string>

#include "op_plan.h"

namespace npu::ops {

struct HostUseAnswer {
  bool is_final;                       // valid for later calls, too
  std::optional<std::string> refusal;  // reason for a refusal
};

// Called without locks.
using HostUseRule = HostUseAnswer (*)(const OpPlan& plan);
void set_host_use_rule(HostUseRule rule);

// Throws c10::NotImplementedError if the rule refuses the op. Without a rule, every op may run.
void check_host_use(OpPlan& plan);

}  // namespace npu::ops
