// One call of the fallback: replaces arguments, runs the CPU kernel, updates written arguments, and
// converts results to npu tensors.

#include "fallback.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include "checks/check.h"
#include "host_use.h"
#include "npu/capture.h"
#include "npu/device.h"
#include "npu/generator.h"
#include "npu/observe.h"
#include "sparse.h"

namespace npu::ops {
namespace {

using c10::BackendComponent;
using c10::DispatchKeySet;
using c10::IValue;

// Backend keys of kernels that a fallback can reach, without autograd and similar keys.
constexpr DispatchKeySet kKernelBits({c10::DispatchKey::Dense, c10::DispatchKey::Sparse,
                                      c10::DispatchKey::SparseCsr, c10::DispatchKey::Quantized});

class HostCall {
 public:
  HostCall(OpPlan& plan, DispatchKeySet keys, torch::jit::Stack& stack)
      : plan_(plan), keys_(keys), stack_(stack), base_(stack.size() - plan.argument_count) {}

  void run() {
    if (C10_UNLIKELY(is_capturing()) && !plan_.is_view) refuse_capture(plan_.name);
    for (const ArgumentPlan& argument : plan_.arguments)
      replace(argument, stack_[base_ + argument.index]);
    if (has_foreign_) check_foreign();
    run_kernel();
    if (device_index_ < 0) return;
    for (std::size_t i = stack_.size() - plan_.return_count; i < stack_.size(); ++i)
      give_back(stack_[i]);
  }

 private:
  // An npu argument and its alias during the call. Both are held until the end, so that no address
  // is reused while results are matched.
  struct Alias {
    at::Tensor original;
    at::Tensor alias;
    const c10::StorageImpl*
        storage;  // null for sparse layouts, whose members have separate entries
    bool is_written;
  };
  // A defined tensor argument on another device.
  struct Foreign {
    at::Tensor tensor;
    const ArgumentPlan* argument;
  };

  void replace(const ArgumentPlan& argument, IValue& value) {
    switch (argument.kind) {
      case ArgumentKind::kTensor:
        if (value.isTensor()) replace_tensor(argument, value);
        return;
      case ArgumentKind::kTensorList:
        if (value.isTensorList()) replace_list(argument, value);
        return;
      case ArgumentKind::kOptionalTensorList:
        if (value.isList()) replace_optional_list(argument, value);
        return;
      case ArgumentKind::kDevice:
        if (value.isDevice()) replace_device(value);
        return;
      case ArgumentKind::kGenerator:
        replace_generator(value);
        return;
    }
  }

  void replace_tensor(const ArgumentPlan& argument, IValue& value) {
    if (is_npu_value(value)) {
      value = IValue(alias(std::move(value).toTensor(), argument));
    } else if (value.toTensor().defined()) {
      foreign_.push_back({value.toTensor(), &argument});
      has_foreign_ = true;
    }
  }

  void replace_list(const ArgumentPlan& argument, IValue& value) {
    const c10::List<at::Tensor> given = value.toTensorList();
    c10::List<at::Tensor> aliased;
    aliased.reserve(given.size());
    for (std::size_t i = 0; i < given.size(); ++i)
      aliased.push_back(alias_or_keep(given.get(i), argument));
    value = IValue(std::move(aliased));
  }

  void replace_optional_list(const ArgumentPlan& argument, IValue& value) {
    const c10::List<std::optional<at::Tensor>> given = value.toOptionalTensorList();
    c10::List<std::optional<at::Tensor>> aliased;
    aliased.reserve(given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      std::optional<at::Tensor> element = given.get(i);
      if (element) element = alias_or_keep(*std::move(element), argument);
      aliased.push_back(std::move(element));
    }
    value = IValue(std::move(aliased));
  }

  void replace_device(IValue& value) {
    const c10::Device device = value.toDevice();
    if (device.type() == c10::DeviceType::PrivateUse1) {
      note_device(device.has_index() ? device.index() : current_index());
      value = IValue(c10::Device(c10::DeviceType::CPU));
    } else {
      has_other_device_ = true;
    }
  }

  void replace_generator(IValue& value) {
    if (value.isNone()) {
      value = IValue(cpu_generator_of(default_generator(device_index_)));
      return;
    }
    const at::Generator given = value.toGenerator();
    if (!given.defined()) {
      value = IValue(cpu_generator_of(default_generator(device_index_)));
      return;
    }
    TORCH_CHECK(given.device().type() == c10::DeviceType::PrivateUse1, plan_.name,
                ": expected a 'npu' device type for generator but found '", given.device().type(),
                "'. Pass torch.Generator(\"npu\"). [generator-device]");
    value = IValue(cpu_generator_of(given));
  }

  static bool is_npu_value(const IValue& value) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && is_npu(tensor);
  }

  // A tensor has one alias per call, because kernels check whether `out` is an input. Ops whose
  // kernels do so have few tensors, so the search is short.
  Alias* find_alias(const at::Tensor& original) {
    const std::size_t searched = std::min<std::size_t>(aliases_.size(), 8);
    for (std::size_t i = 0; i < searched; ++i) {
      if (aliases_[i].original.is_same(original)) return &aliases_[i];
    }
    return nullptr;
  }

  at::Tensor alias(at::Tensor original, const ArgumentPlan& argument) {
    if (Alias* known = find_alias(original)) {
      if (argument.is_written && !known->is_written) {
        known->is_written = has_written_ = true;
        if (known->storage != nullptr) {
          known->storage = prepare_for_write(known->alias, original);
        }
      }
      return known->alias;
    }
    note_device(original.device().index());
    at::Tensor alias;
    if (C10_UNLIKELY(is_sparse(*original.unsafeGetTensorImpl()))) {
      alias = sparse_alias_of(*original.unsafeGetTensorImpl(), [&](const at::Tensor& member) {
        return is_npu(member) ? this->alias(member, argument) : member;
      });
      if (plan_.grad == GradFlag::kVisible) alias.set_requires_grad(original.requires_grad());
    } else {
      const Access access = argument.is_written ? Access::kWrite : Access::kRead;
      alias = alias_of(original, access, plan_.grad);
    }
    aliases_.push_back({std::move(original), alias,
                        alias.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                        argument.is_written});
    has_written_ |= argument.is_written;
    return alias;
  }

  at::Tensor alias_or_keep(at::Tensor tensor, const ArgumentPlan& argument) {
    if (!tensor.defined()) return tensor;
    if (is_npu(tensor)) return alias(std::move(tensor), argument);
    foreign_.push_back({tensor, &argument});
    has_foreign_ = true;
    return tensor;
  }

  static c10::DeviceIndex current_index() { return current_device(); }

  void note_device(c10::DeviceIndex index) {
    TORCH_CHECK(
        device_index_ < 0 || device_index_ == index,
        "Expected all tensors to be on the same device, but found at least two devices, npu:",
        static_cast<int>(device_index_), " and npu:", static_cast<int>(index), "! (", plan_.name,
        ") Move one of them with .to(). [device-mix]");
    device_index_ = index;
  }

  // Zero-dim CPU tensors are numbers, as on CUDA; other tensors on other devices are errors.
  void check_foreign() const {
    if (aliases_.empty()) return;
    for (const Foreign& foreign : foreign_) {
      const at::Tensor& tensor = foreign.tensor;
      const bool is_number = tensor.dim() == 0 && !foreign.argument->is_written;
      const bool is_allowed = is_number || foreign.argument->may_be_on_cpu;
      if (C10_LIKELY(is_allowed && tensor.device().type() == c10::DeviceType::CPU)) continue;
      TORCH_CHECK(
          false,
          "Expected all tensors to be on the same device, but found at least two devices, npu:",
          static_cast<int>(device_index_), " and ", tensor.device(), "! (argument '",
          plan_.op.schema().arguments()[foreign.argument->index].name(), "' of ", plan_.name,
          ") Move it with .to(\"npu\"). [device-mix]");
    }
  }

  void run_kernel() {
    const DispatchKeySet backend_keys =
        (keys_ & kKernelBits) | DispatchKeySet(BackendComponent::CPUBit);
    const HostScope scope(device_index_ < 0 ? current_index() : device_index_);
    // Torch rejects a layout without a kernel itself, with its own exception class.
    if (C10_UNLIKELY(plan_.check != nullptr) &&
        plan_.op.hasComputedKernelForDispatchKey(backend_keys.highestPriorityTypeId())) {
      plan_.check({plan_.name, torch::jit::last(stack_, plan_.argument_count)});
    }
    const bool is_observed = observe::is_enabled();
    const std::int64_t start_ns = is_observed ? observe::now_ns() : 0;
    try {
      plan_.op.redispatchBoxed(backend_keys, &stack_);
    } catch (...) {
      // A kernel may resize its output and then fail; the alias of the block must not remain.
      if (has_written_) update_written();
      throw;
    }
    if (C10_UNLIKELY(is_observed)) {
      observe::emit_span("fallback", plan_.name, start_ns, observe::now_ns());
    }
    if (has_written_) update_written();
  }

  void update_written() {
    for (Alias& entry : aliases_) {
      if (!entry.is_written) continue;
      if (C10_LIKELY(entry.storage != nullptr)) {
        update_storage(entry);
        update_geometry(entry);
      } else {
        take_over_sparse(*entry.original.unsafeGetTensorImpl(), *entry.alias.unsafeGetTensorImpl(),
                         [&](const at::Tensor& member) { return to_npu(member, 1); });
      }
    }
  }

  void update_storage(Alias& entry) {
    c10::TensorImpl& original = *entry.original.unsafeGetTensorImpl();
    c10::StorageImpl* storage = original.unsafe_storage().unsafeGetStorageImpl();
    c10::StorageImpl* used =
        entry.alias.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (C10_UNLIKELY(used != entry.storage)) {  // the kernel replaced the alias's storage
      adopt_storage(*used, device_index_);
      original.set_storage_keep_dtype(entry.alias.unsafeGetTensorImpl()->unsafe_storage());
      return;
    }
    c10::DataPtr& memory = used->_mutable_data_ptr_no_checks();
    if (C10_UNLIKELY(memory.get() != storage->data_ptr().get() && memory.get() != nullptr)) {
      // Resized: the memory is moved, and the old block is freed with its cached alias.
      const std::size_t size_bytes = used->nbytes();
      c10::DataPtr moved = std::move(memory);
      used->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
      storage->set_data_ptr_noswap(std::move(moved));
      storage->set_nbytes(size_bytes);
      adopt_storage(*storage, device_index_);
    }
  }

  void update_geometry(Alias& entry) {
    c10::TensorImpl& original = *entry.original.unsafeGetTensorImpl();
    const c10::TensorImpl& alias = *entry.alias.unsafeGetTensorImpl();
    if (C10_LIKELY(original.sizes() == alias.sizes() && original.strides() == alias.strides() &&
                   original.storage_offset() == alias.storage_offset())) {
      return;
    }
    original.set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }

  void give_back(IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& result = value.toTensor();
      if (!result.defined() || adopt_fresh(result, 1)) return;
      value = IValue(match(result));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> results = value.toTensorList();
      for (std::size_t i = 0; i < results.size(); ++i) {
        const at::Tensor result = results.get(i);
        // Two references are ours: the list's and `result`.
        if (result.defined() && !adopt_fresh(result, 2)) results.set(i, match(result));
      }
    }
  }

  at::Tensor to_npu(const at::Tensor& result, std::size_t own_references) {
    return adopt_fresh(result, own_references) ? result : match(result);
  }

  // The usual case: memory from the pool with no other holder. False if the result must be matched
  // with the arguments.
  bool adopt_fresh(const at::Tensor& result, std::size_t own_references) {
    if (C10_UNLIKELY(is_npu(result))) return true;
    // An op with an explicit other device returns on that device, except for results in npu memory.
    if (C10_UNLIKELY(has_other_device_)) return !is_alias(result);
    c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
    c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
    if (C10_UNLIKELY(has_foreign_)) {
      for (const Foreign& foreign : foreign_) {
        // `out` on the CPU stays there, if the op allows it.
        if (foreign.tensor.is_same(result) && foreign.argument->is_written) return true;
      }
      if (is_foreign(impl, storage)) return false;
    }
    if (C10_UNLIKELY(storage == nullptr)) {
      if (is_alias(result)) return false;
      if (is_sparse(impl)) {
        map_members(impl, [&](const at::Tensor& member) { return to_npu(member, 1); });
      }
      adopt_tensor(result, device_index_);
      return true;
    }
    // Results may share memory; the first of them has taken it over.
    const bool is_adopted = storage->device_type() == c10::DeviceType::PrivateUse1;
    if (!is_adopted && (!is_adoptable(storage->data_ptr()) || result.use_count() > own_references ||
                        is_held_elsewhere(impl.unsafe_storage()))) {
      return false;
    }
    adopt_tensor(result, device_index_);
    return true;
  }

  // True if the memory has other holders than the results, for example a kernel in Python.
  bool is_held_elsewhere(const c10::Storage& storage) const {
    if (C10_LIKELY(storage.use_count() == 1)) return false;
    std::size_t held_by_results = 0;
    const auto count = [&](const at::Tensor& result) {
      if (!result.defined()) return;
      const c10::Storage& held = result.unsafeGetTensorImpl()->unsafe_storage();
      if (held && held.is_alias_of(storage)) ++held_by_results;  // sparse results have none
    };
    for (std::size_t i = stack_.size() - plan_.return_count; i < stack_.size(); ++i) {
      if (stack_[i].isTensor()) {
        count(stack_[i].toTensor());
      } else if (stack_[i].isTensorList()) {
        for (const at::Tensor& result : stack_[i].toTensorVector())
          count(result);
      }
    }
    return storage.use_count() > held_by_results;
  }

  bool is_foreign(const c10::TensorImpl& impl, const c10::StorageImpl* storage) const {
    for (const Foreign& foreign : foreign_) {
      const c10::TensorImpl& given = *foreign.tensor.unsafeGetTensorImpl();
      if (&given == &impl) return true;
      if (given.unsafe_storage() && given.unsafe_storage().unsafeGetStorageImpl() == storage)
        return true;
    }
    return false;
  }

  bool is_alias(const at::Tensor& result) const {
    const c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    for (const Alias& entry : aliases_) {
      if (entry.alias.unsafeGetTensorImpl() == impl) return true;
      if (storage != nullptr && entry.storage == storage) return true;
    }
    return false;
  }

  at::Tensor match(const at::Tensor& result) {
    const c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    for (const Alias& entry : aliases_) {
      if (entry.alias.unsafeGetTensorImpl() == impl) return entry.original;
    }
    const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    for (const Alias& entry : aliases_) {
      if (storage != nullptr && entry.storage == storage)
        return view_from_alias(entry.original, result);
    }
    return copy_to_npu(result, device_index_);
  }

  OpPlan& plan_;
  const DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  const std::size_t base_;
  c10::SmallVector<Alias, 6> aliases_;
  c10::SmallVector<Foreign, 2> foreign_;
  c10::DeviceIndex device_index_ = -1;
  bool has_written_ = false;
  bool has_foreign_ = false;
  bool has_other_device_ = false;
};

void run(OpPlan& plan, DispatchKeySet keys, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(plan.host_use.load(std::memory_order_relaxed) != HostUse::kAllowed)) {
    check_host_use(plan);
  }
  plan.call_count.fetch_add(1, std::memory_order_relaxed);
  HostCall(plan, keys, *stack).run();
}

}  // namespace

void HostKernel::operator()(const c10::OperatorHandle&, DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  run(plan_, keys, stack);
}

void CheckedComposition::operator()(const c10::OperatorHandle& op, DispatchKeySet,
                                    torch::jit::Stack* stack) {
  plan_.check({plan_.name, torch::jit::last(*stack, plan_.argument_count)});
  // The composition is the same for all devices and calls ops on the tensors' devices.
  op.redispatchBoxed(DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  run(plan_of(op), keys, stack);
}

}  // namespace npu::ops
