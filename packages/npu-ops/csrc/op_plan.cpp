// Schema analysis, and the table of plans with their counts.

#include "op_plan.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "checks/table.h"

namespace npu::ops {
namespace {

struct CpuArgument {
  std::string_view op_prefix;
  std::string_view argument;
};

// Arguments that CUDA kernels, too, accept on the CPU: they are read on the host before the kernel
// starts.
constexpr CpuArgument kCpuArguments[] = {
    {"aten::index.", "indices"},
    {"aten::index_put", "indices"},
    {"aten::_index_put_impl_", "indices"},
    {"aten::_unsafe_index", "indices"},
    {"aten::_unsafe_masked_index", "indices"},
    {"aten::_ctc_loss", "input_lengths"},
    {"aten::_ctc_loss", "target_lengths"},
    {"aten::_foreach_", "scalars"},
    {"aten::copy_", "self"},
    {"aten::copy_", "src"},
    {"aten::_foreach_copy", "src"},
    {"aten::_nested_from_padded", "cpu_nested_shape_example"},
    {"aten::_nested_view_from_buffer", "nested_size"},
    {"aten::_nested_view_from_buffer", "nested_strides"},
    {"aten::_nested_view_from_buffer", "offsets"},
};

const std::unordered_set<std::string_view>& ops_that_read_requires_grad() {
  static const std::unordered_set<std::string_view> names{
      "aten::convolution",
      "aten::_convolution",
      "aten::_fused_sdp_choice",
      "aten::_native_multi_head_attention",
      "aten::_sparse_mm_reduce_impl",
      "aten::_transformer_encoder_layer_fwd",
  };
  return names;
}

std::optional<ArgumentKind> kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::OptionalType:
      return kind_of(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
      if (element.kind() == c10::TypeKind::TensorType) return ArgumentKind::kTensorList;
      if (element.kind() == c10::TypeKind::OptionalType &&
          kind_of(element) == ArgumentKind::kTensor) {
        return ArgumentKind::kOptionalTensorList;
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

struct NameHash {
  std::size_t operator()(const c10::OperatorName& name) const {
    return std::hash<std::string>()(name.name) ^
           (std::hash<std::string>()(name.overload_name) << 1);
  }
};

struct PlanTable {
  std::shared_mutex mutex;
  std::deque<OpPlan> plans;  // a deque, because kernels keep references
  std::unordered_map<c10::OperatorName, OpPlan*, NameHash> by_name;
  // Calls of ops that a library unregistered.
  std::unordered_map<c10::OperatorName, std::uint64_t, NameHash> calls_of_gone;
};

// Never destroyed: kernels run until the very end of the process.
PlanTable& bare_table() {
  static auto* instance = new PlanTable;
  return *instance;
}

// An unloaded library takes its ops' handles with it, and another may define ops with the same
// names: their plans are created again.
class GoneOps final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}

  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    PlanTable& plans = bare_table();
    const std::unique_lock lock(plans.mutex);
    const auto found = plans.by_name.find(op.operator_name());
    if (found == plans.by_name.end()) return;
    const std::uint64_t calls = found->second->call_count.load(std::memory_order_relaxed);
    if (calls != 0) plans.calls_of_gone[found->first] += calls;
    plans.by_name.erase(found);
  }
};

PlanTable& table() {
  static auto* listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<GoneOps>()));
  static_cast<void>(listening);
  return bare_table();
}

}  // namespace

OpPlan::OpPlan(const c10::OperatorHandle& handle)
    : op(handle), name(full_name(handle.operator_name())), check(checks::argument_check_of(name)) {
  const c10::FunctionSchema& schema = handle.schema();
  argument_count = schema.arguments().size();
  return_count = schema.returns().size();
  is_view =
      return_count != 0 &&
      std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& value) {
        return value.alias_info() != nullptr && !value.alias_info()->isWrite();
      });
  grad = ops_that_read_requires_grad().contains(handle.operator_name().name) ? GradFlag::kVisible
                                                                             : GradFlag::kHidden;
  for (std::size_t index = 0; index < argument_count; ++index) {
    const c10::Argument& argument = schema.arguments()[index];
    const auto kind = kind_of(*argument.type());
    if (!kind) continue;
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const bool may_be_on_cpu = std::any_of(
        std::begin(kCpuArguments), std::end(kCpuArguments), [&](const CpuArgument& row) {
          return name.starts_with(row.op_prefix) && argument.name() == row.argument;
        });
    arguments.push_back({static_cast<std::uint16_t>(index), *kind, is_written, may_be_on_cpu});
  }
}

OpPlan& plan_of(const c10::OperatorHandle& op) {
  PlanTable& plans = table();
  {
    const std::shared_lock lock(plans.mutex);
    if (const auto found = plans.by_name.find(op.operator_name()); found != plans.by_name.end()) {
      return *found->second;
    }
  }
  const std::unique_lock lock(plans.mutex);
  auto [slot, is_new] = plans.by_name.try_emplace(op.operator_name(), nullptr);
  if (is_new) slot->second = &plans.plans.emplace_back(op);
  return *slot->second;
}

std::vector<std::pair<std::string, std::uint64_t>> fallback_counts() {
  std::vector<std::pair<std::string, std::uint64_t>> counts;
  {
    PlanTable& plans = table();
    const std::shared_lock lock(plans.mutex);
    auto calls_of = plans.calls_of_gone;
    for (const auto& [name, plan] : plans.by_name)
      calls_of[name] += plan->call_count.load(std::memory_order_relaxed);
    for (const auto& [name, calls] : calls_of) {
      if (calls != 0) counts.emplace_back(full_name(name), calls);
    }
  }
  std::sort(counts.begin(), counts.end(), [](const auto& left, const auto& right) {
    return left.second != right.second ? left.second > right.second : left.first < right.first;
  });
  return counts;
}

void reset_fallback_counts() {
  PlanTable& plans = table();
  const std::unique_lock lock(plans.mutex);
  for (OpPlan& plan : plans.plans)
    plan.call_count.store(0, std::memory_order_relaxed);
  plans.calls_of_gone.clear();
}

bool has_host_kernel(const std::string& name) {
  PlanTable& plans = table();
  const std::shared_lock lock(plans.mutex);
  return std::any_of(plans.by_name.begin(), plans.by_name.end(), [&](const auto& row) {
    return row.second->name == name && row.second->has_host_kernel;
  });
}

std::vector<std::string> known_ops() {
  PlanTable& plans = table();
  const std::shared_lock lock(plans.mutex);
  std::vector<std::string> names;
  for (const auto& [name, plan] : plans.by_name)
    names.push_back(plan->name);
  return names;
}

bool force_host(const std::string& name, bool is_forced) {
  PlanTable& plans = table();
  const std::shared_lock lock(plans.mutex);
  for (const auto& [key, plan] : plans.by_name) {
    if (plan->name != name) continue;
    if (is_forced) {
      plan->boxed_path.fetch_or(kForced, std::memory_order_relaxed);
    } else {
      plan->boxed_path.fetch_and(static_cast<std::uint8_t>(~kForced), std::memory_order_relaxed);
    }
    return true;
  }
  return false;
}

void reset_host_use() {
  PlanTable& plans = table();
  const std::shared_lock lock(plans.mutex);
  for (OpPlan& plan : plans.plans)
    plan.host_use.store(HostUse::kUnseen, std::memory_order_relaxed);
}

}  // namespace npu::ops
