// Calls the rule, and caches a final approval.
#include "host_use.h"

#include <c10/util/Exception.h>

namespace npu::ops {
namespace {
std::atomic<HostUseRule> host_use_rule{nullptr};
}  // namespace

void set_host_use_rule(HostUseRule rule) {
  host_use_rule.store(rule, std::memory_order_release);
}

void check_host_use(OpPlan& plan) {
  const HostUseRule rule = host_use_rule.load(std::memory_order_acquire);
  if (rule == nullptr || plan.is_view) return;
  const HostUseAnswer answer = rule(plan);
  TORCH_CHECK_NOT_IMPLEMENTED(!answer.refusal, *answer.refusal);
  if (answer.is_final) plan.host_use.store(HostUse::kAllowed, std::memory_order_relaxed);
}

}  // namespace npu::ops
