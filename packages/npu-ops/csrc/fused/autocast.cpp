// Autocast rules of torch.ops.npu, equal to those of the torch ops they replace. Torch's own ops
// are in csrc/autocast.cpp.

#include "autocast.h"

#include <memory>
#include <optional>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace npu::ops::fused {
namespace {

// The dtype to cast an op's arguments to.
enum class Rule {
  kLower,    // autocast's dtype
  kFloat32,  // sums of squares
  kWidest,   // the widest argument's dtype, as in `a * b`
  kCache,    // the dtype of the cache, which is written in place; the result has autocast's dtype
};

struct Row {
  const char* op;
  Rule rule;
  std::vector<std::size_t> arguments;  // positions of the arguments to cast
};

// Scales, zero points and statistics are not cast: the kernels take them in float32.
const std::vector<Row>& rows() {
  static const auto* instance = new std::vector<Row>{
      {"linear_relu", Rule::kLower, {0, 1, 2}},
      {"linear_gelu", Rule::kLower, {0, 1, 2}},
      {"addmm_relu", Rule::kLower, {0, 1, 2}},
      {"conv_bn_relu", Rule::kLower, {0, 1, 2}},
      {"fused_attention", Rule::kLower, {0, 1, 2}},
      {"fused_attention.cache", Rule::kCache, {0, 1, 2}},
      {"quantized_linear", Rule::kLower, {0, 4}},
      {"rotary_embedding", Rule::kWidest, {0, 1, 2}},
      {"swiglu", Rule::kWidest, {0, 1}},
  };
  return *instance;
}

constexpr std::size_t kCacheArgument = 3;

class AutocastKernel final : public c10::OperatorKernel {
 public:
  AutocastKernel(c10::DeviceType device, Row row) : device_(device), row_(std::move(row)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard once(
        at::autocast::get_autocast_dispatch_key_from_device_type(device_));
    const std::size_t base = stack->size() - op.schema().arguments().size();
    const at::ScalarType type = target(*stack, base);
    for (const std::size_t position : row_.arguments) {
      c10::IValue& value = (*stack)[base + position];
      if (is_floating(value)) value = at::autocast::cached_cast(type, value.toTensor(), device_);
    }
    op.callBoxed(stack);
    if (row_.rule == Rule::kCache) {
      stack->back() = at::autocast::cached_cast(lower(), stack->back().toTensor(), device_);
    }
  }

 private:
  static bool is_floating(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().is_floating_point();
  }

  at::ScalarType lower() const {
    return at::autocast::get_lower_precision_fp_from_device_type(device_);
  }

  at::ScalarType target(const torch::jit::Stack& stack, std::size_t base) const {
    switch (row_.rule) {
      case Rule::kLower:
        return lower();
      case Rule::kFloat32:
        return at::kFloat;
      case Rule::kCache:
        return stack[base + kCacheArgument].toTensor().scalar_type();
      case Rule::kWidest:
        break;
    }
    std::optional<at::ScalarType> widest;
    for (const std::size_t position : row_.arguments) {
      const c10::IValue& value = stack[base + position];
      if (!is_floating(value)) continue;
      const at::ScalarType type = value.toTensor().scalar_type();
      widest = widest ? c10::promoteTypes(*widest, type) : type;
    }
    return widest.value_or(at::kFloat);
  }

  c10::DeviceType device_;
  Row row_;
};

void add(torch::Library& library, c10::DeviceType device, const Row& row) {
  library.impl(row.op, torch::CppFunction::makeFromBoxedFunctor(
                           std::make_unique<AutocastKernel>(device, row)));
}

}  // namespace

void add_autocast_on_cpu(torch::Library& library) {
  for (const Row& row : rows())
    add(library, c10::DeviceType::CPU, row);
}

void add_autocast_on_npu(torch::Library& library) {
  for (const Row& row : rows())
    add(library, c10::DeviceType::PrivateUse1, row);
  // torch's rms_norm computes in float32 on accelerators, and in the dtype of x on the CPU.
  add(library, c10::DeviceType::PrivateUse1, {"rms_norm", Rule::kFloat32, {0, 1}});
}

}  // namespace npu::ops::fused
