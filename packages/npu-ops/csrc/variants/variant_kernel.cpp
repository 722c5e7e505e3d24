// The steps of a call: check whether the op is active, look up the cache, run.
#include "variants/variant_kernel.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "alias.h"
#include "checks/check.h"
#include "npu/device.h"

namespace npu::ops::variants {
namespace {

struct Op {
  std::atomic<Activity> activity{Activity::kUnresolved};
  OpPlan* plan = nullptr;

  void set(Activity value) {
    activity.store(value, std::memory_order_relaxed);
    if (value == Activity::kOff) {
      plan->boxed_path.fetch_and(static_cast<std::uint8_t>(~kAsksForChoice),
                                 std::memory_order_relaxed);
    } else {
      plan->boxed_path.fetch_or(kAsksForChoice, std::memory_order_relaxed);
    }
  }
};

struct Table {
  std::mutex mutex;
  std::map<std::string, Op> ops;
};

Table& table() {
  static auto* instance = new Table;
  return *instance;
}

std::atomic<Activity>& activity_of(OpPlan& plan) {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  Op& op = known.ops[plan.name];
  if (op.plan == nullptr) {
    op.plan = &plan;
    op.set(Activity::kUnresolved);
  }
  return op.activity;
}

std::atomic<const Deciders*> deciders{nullptr};

// Ops called while a program is built use the host kernel.
thread_local bool is_choosing = false;

class ChoosingScope {
 public:
  ChoosingScope() : previous_(exchange_choosing(true)) {}
  ~ChoosingScope() { exchange_choosing(previous_); }
  ChoosingScope(const ChoosingScope&) = delete;
  ChoosingScope& operator=(const ChoosingScope&) = delete;

 private:
  bool previous_;
};

// aten::embedding(weight, indices, ...). A device does not report an index outside of the table;
// torch's kernel raises IndexError.
bool has_wrong_index(at::ArrayRef<c10::IValue> arguments) {
  const auto [least, most] = at::aminmax(arguments[1].toTensor());
  return least.item().toLong() < 0 || most.item().toLong() >= arguments[0].toTensor().size(0);
}

bool will_need_grad(at::ArrayRef<c10::IValue> arguments) {
  if (!at::GradMode::is_enabled()) return false;
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
  });
}

std::atomic<std::uint64_t> runs{0};

at::Tensor bound_input(const at::Tensor& tensor, at::IntArrayRef order) {
  return order.empty() ? tensor.contiguous() : tensor.permute(order).contiguous();
}

void run_program(const Choice& choice, std::size_t argument_count, torch::jit::Stack& stack) {
  std::vector<at::Tensor> inputs;
  inputs.reserve(choice.inputs.size());
  const std::size_t base = stack.size() - argument_count;
  for (std::size_t index = 0; index < choice.inputs.size(); ++index)
    inputs.push_back(
        bound_input(stack[base + choice.inputs[index]].toTensor(), choice.input_orders[index]));
  const c10::Device device = inputs.front().device();
  const std::vector<at::Tensor> outputs = choice.program->run(inputs, {}, device);
  runs.fetch_add(1, std::memory_order_relaxed);
  stack.resize(base);
  for (const std::int32_t output : choice.results) {
    if (output < 0) {
      stack.emplace_back(output == Choice::kEmpty ? at::empty({0}, inputs.front().options())
                                                  : at::Tensor());
      continue;
    }
    const auto& order = choice.output_orders[output];
    stack.emplace_back(order.empty() ? outputs[output] : outputs[output].permute(order));
  }
}

ProgramCache::Found decide(const OpPlan& plan, at::ArrayRef<c10::IValue> arguments,
                           const Signature& signature, bool needs_grad) {
  const Deciders* given = deciders.load(std::memory_order_acquire);
  const ChoosingScope scope;
  return program_cache().insert(&plan, signature, given->choose(plan, arguments, needs_grad));
}

}  // namespace

VariantKernel::VariantKernel(OpPlan& plan)
    : plan_(plan),
      host_(plan),
      activity_(activity_of(plan)),
      gives_statistics_(plan.name == "aten::_scaled_dot_product_flash_attention_for_cpu"),
      takes_indices_(plan.name == "aten::embedding") {}

void VariantKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                               torch::jit::Stack* stack) {
  Activity activity = activity_.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(activity == Activity::kUnresolved && !is_choosing)) {
    if (const Deciders* given = deciders.load(std::memory_order_acquire)) {
      const ChoosingScope scope;
      given->resolve();
      activity = activity_.load(std::memory_order_relaxed);
    }
  }
  if (C10_LIKELY(activity != Activity::kOn) || is_choosing) return host_(op, keys, stack);

  const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, plan_.argument_count);
  const bool needs_grad = gives_statistics_ && will_need_grad(arguments);
  const std::optional<Signature> signature = signature_of(arguments, needs_grad);
  if (!signature) return host_(op, keys, stack);
  if (C10_UNLIKELY(plan_.check != nullptr)) plan_.check({plan_.name, arguments});
  ProgramCache::Found choice = program_cache().find(&plan_, *signature);
  if (choice == nullptr) choice = decide(plan_, arguments, *signature, needs_grad);
  if (choice->program == nullptr || (takes_indices_ && has_wrong_index(arguments))) {
    return host_(op, keys, stack);
  }
  run_program(*choice, plan_.argument_count, *stack);
}

void set_deciders(Deciders given) {
  deciders.store(new Deciders(given));
}

bool exchange_choosing(bool value) noexcept {
  return std::exchange(is_choosing, value);
}

void declare(OpPlan& plan) {
  activity_of(plan);
}

bool is_declared(const std::string& op_name) {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  return known.ops.contains(op_name);
}

std::vector<std::string> variant_ops() {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  std::vector<std::string> names;
  for (const auto& [name, op] : known.ops)
    names.push_back(name);
  return names;
}

bool set_active(const std::string& op_name, bool is_active) {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  const auto found = known.ops.find(op_name);
  if (found == known.ops.end()) return false;
  found->second.set(is_active ? Activity::kOn : Activity::kOff);
  return true;
}

std::uint64_t program_runs() {
  return runs.load(std::memory_order_relaxed);
}

void reset_choices() {
  {
    Table& known = table();
    const std::lock_guard lock(known.mutex);
    for (auto& [name, op] : known.ops)
      op.set(Activity::kUnresolved);
  }
  program_cache().clear();
}

}  // namespace npu::ops::variants
