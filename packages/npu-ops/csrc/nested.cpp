// Nested tensors of the strided layout on npu: their CPU kernels run on aliases of the buffers.
//
// Jagged nested tensors are implemented in Python and need only attention here, which converts them
// to strided ones. Shapes of a nested tensor are CPU tensors on every device.

#include <string>

#include <ATen/NestedTensorImpl.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "alias.h"
#include "npu/device.h"
#include "npu/generator.h"
#include "npu/observe.h"
#include "op_plan.h"

namespace npu::ops {
namespace {

using at::native::NestedTensorImpl;
using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;

bool is_nested(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(DispatchKey::NestedTensor);
}

const NestedTensorImpl& nested_impl(const at::Tensor& tensor) {
  return *static_cast<const NestedTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor nested_over(c10::Storage storage, const at::Tensor& shapes, BackendComponent backend) {
  const NestedTensorImpl& from = nested_impl(shapes);
  DispatchKeySet keys = DispatchKeySet(DispatchKey::NestedTensor) | DispatchKeySet(backend);
  // The constructor sets the backend's autograd key, but not that of nested tensors.
  if (!c10::InferenceMode::is_enabled()) keys = keys.add(DispatchKey::AutogradNestedTensor);
  return at::detail::make_tensor<NestedTensorImpl>(
      std::move(storage), keys, from.dtype(), from.get_nested_sizes(), from.get_nested_strides(),
      from.get_storage_offsets());
}

class NestedCall {
 public:
  NestedCall(OpPlan& plan, torch::jit::Stack& stack) : plan_(plan), stack_(stack) {}

  void run() {
    const std::size_t base = stack_.size() - plan_.argument_count;
    for (const ArgumentPlan& argument : plan_.arguments)
      replace(argument, stack_[base + argument.index]);
    {
      const HostScope scope(device_index_);
      const bool is_observed = observe::is_enabled();
      const std::int64_t start_ns = is_observed ? observe::now_ns() : 0;
      plan_.op.redispatchBoxed(DispatchKeySet(DispatchKey::NestedTensorCPU), &stack_);
      if (is_observed) observe::emit_span("fallback", plan_.name, start_ns, observe::now_ns());
    }
    for (std::size_t i = stack_.size() - plan_.return_count; i < stack_.size(); ++i)
      give_back(stack_[i]);
  }

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor alias;
    at::Tensor bytes;  // of a nested tensor: the alias of its buffer, with the window's lifetime
  };

  void replace(const ArgumentPlan& argument, IValue& value) {
    if (value.isTensor()) {
      value = IValue(alias(value.toTensor(), argument));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> aliased;
      for (const at::Tensor& element : value.toTensorVector())
        aliased.push_back(alias(element, argument));
      value = IValue(std::move(aliased));
    } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
      value = IValue(c10::Device(c10::DeviceType::CPU));
    } else if (value.isDevice()) {
      stays_on_host_ = true;
    } else if (argument.kind == ArgumentKind::kGenerator) {
      const bool is_given = value.isGenerator() && value.toGenerator().defined();
      value = IValue(
          cpu_generator_of(is_given ? value.toGenerator() : default_generator(device_index_)));
    }
  }

  at::Tensor alias(const at::Tensor& tensor, const ArgumentPlan& argument) {
    if (!tensor.defined() || !is_npu(tensor)) return tensor;
    device_index_ = tensor.device().index();
    const Access access = argument.is_written ? Access::kWrite : Access::kRead;
    at::Tensor alias;
    at::Tensor bytes;
    if (is_nested(tensor)) {
      bytes = alias_of(nested_impl(tensor).get_unsafe_storage_as_tensor(), access);
      alias = nested_over(bytes.storage(), tensor, BackendComponent::CPUBit);
    } else {
      alias = alias_of(tensor, access);
    }
    pairs_.push_back({tensor, alias, bytes});
    return alias;
  }

  void give_back(IValue& value) {
    if (value.isTensor()) {
      value = IValue(to_npu(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> results = value.toTensorList();
      for (std::size_t i = 0; i < results.size(); ++i)
        results.set(i, to_npu(results.get(i)));
    }
  }

  at::Tensor to_npu(const at::Tensor& result) const {
    if (!result.defined() || stays_on_host_ || !result.is_cpu() || is_shape(result)) return result;
    for (const Pair& pair : pairs_) {
      if (pair.alias.is_same(result)) return pair.original;
    }
    for (const Pair& pair : pairs_) {
      if (!result.storage().is_alias_of(pair.alias.storage())) continue;
      if (is_nested(result))
        return nested_over(pair.original.storage(), result, BackendComponent::PrivateUse1Bit);
      return view_from_alias(dense_base(pair.original), result);
    }
    if (!is_nested(result)) {
      adopt_tensor(result, device_index_);
      return result;
    }
    adopt_storage(*result.storage().unsafeGetStorageImpl(), device_index_);
    return nested_over(result.storage(), result, BackendComponent::PrivateUse1Bit);
  }

  static at::Tensor dense_base(const at::Tensor& original) {
    return is_nested(original) ? nested_impl(original).get_unsafe_storage_as_tensor() : original;
  }

  // Sizes, strides and offsets of an argument, which some ops return.
  bool is_shape(const at::Tensor& result) const {
    for (const Pair& pair : pairs_) {
      if (!is_nested(pair.alias)) continue;
      const NestedTensorImpl& impl = nested_impl(pair.alias);
      for (const at::Tensor* part :
           {&impl.get_nested_sizes(), &impl.get_nested_strides(), &impl.get_storage_offsets()}) {
        if (part->is_same(result)) return true;
      }
    }
    return false;
  }

  OpPlan& plan_;
  torch::jit::Stack& stack_;
  c10::SmallVector<Pair, 6> pairs_;
  c10::DeviceIndex device_index_ = current_device();
  bool stays_on_host_ = false;
};

void run_nested_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  OpPlan& plan = plan_of(op);
  plan.call_count.fetch_add(1, std::memory_order_relaxed);
  NestedCall(plan, *stack).run();
}

// Listed one by one, because torch would compose some of them for other devices, of parts without
// support for nested tensors.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  const std::string prefix = "aten::";
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(DispatchKey::NestedTensorCPU)) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with(prefix)) continue;
    m.impl(plan_of(*op).name.substr(prefix.size()).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&run_nested_on_host>());
  }
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_nested_on_host>());
}

}  // namespace
}  // namespace npu::ops
