// Calls supported by the hot kernels, and their state around an op: common tensors, host windows,
// numbers in the tensors' dtype.
//
// The ops are in pointwise.cpp and bytes.cpp. Every other call takes the boxed path (fallback.h).
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include "alias.h"
#include "fallback.h"
#include "npu/allocator.h"
#include "npu/capture.h"
#include "npu/device.h"
#include "npu/host_access.h"
#include "npu/observe.h"
#include "npu/process.h"

namespace npu::ops::hot {

// The keys of a common tensor: strided, on npu, with or without autograd.
inline constexpr c10::DispatchKeySet kCommonKeys =
    c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                         c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastPrivateUse1,
                         c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
    c10::DispatchKeySet(c10::BackendComponent::PrivateUse1Bit);

// True for a strided npu tensor over a block of the pool with unshared memory: not conjugate,
// negative, copy-on-write, freed, or memory from elsewhere.
inline bool is_common(const at::Tensor& tensor) {
  static const c10::DeleterFnPtr deleter = device_allocator()->raw_deleter();
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  if ((keys.raw_repr() & ~kCommonKeys.raw_repr()) != 0 ||
      !keys.has_backend(c10::BackendComponent::PrivateUse1Bit) || !impl.has_storage() ||
      impl.is_wrapped_number()) {
    return false;
  }
  const c10::DataPtr& memory = impl.unsafe_storage().unsafeGetStorageImpl()->data_ptr();
  return memory.get() != nullptr && memory.get_deleter() == deleter;
}

// Checks whether the hot kernels support a call's arguments. They must be on one device; CPU
// tensors that wrap a Python number are accepted if `allows_numbers`.
class Inspection {
 public:
  explicit Inspection(bool allows_numbers) : allows_numbers_(allows_numbers) {}

  template <typename Argument>
  void see(const Argument&) {}  // not a tensor

  void see(const at::Tensor& tensor) {
    if (is_common(tensor)) {
      const c10::DeviceIndex index = tensor.device().index();
      is_fit_ &= index_ < 0 || index_ == index;
      index_ = index;
      dtype_ = tensor.scalar_type();
    } else {
      is_fit_ &= allows_numbers_ && tensor.defined() && tensor.is_cpu() &&
                 tensor.unsafeGetTensorImpl()->is_wrapped_number();
    }
  }

  bool is_fit() const { return is_fit_ && index_ >= 0; }
  c10::DeviceIndex device_index() const { return index_; }
  c10::ScalarType dtype() const { return dtype_; }

 private:
  const bool allows_numbers_;
  bool is_fit_ = true;
  c10::DeviceIndex index_ = -1;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
};

// Host windows on tensors while a kernel runs. Empty if the device has no pending work and its
// driver does not protect memory.
class Windows {
 public:
  Windows() = default;
  ~Windows() {
    for (void* window : opened_)
      end_host_access(window);
  }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  void open(const at::Tensor& tensor) {
    if (!is_npu(tensor)) return;
    void* window = begin_host_access(const_cast<void*>(tensor.storage().data_ptr().get()));
    if (window != nullptr) opened_.push_back(window);
  }

 private:
  c10::SmallVector<void*, 4> opened_;
};

// A zero-dim CPU tensor with `number` as `dtype`, or in its own dtype if `dtype` cannot represent
// it. Also for a tensor that wraps a number; an npu tensor is returned unchanged.
at::Tensor number_as(const at::Scalar& number, c10::ScalarType dtype);
at::Tensor number_as(const at::Tensor& tensor, c10::ScalarType dtype);

// Runs `kernel` and emits an event if a listener wants kernels.
template <typename HostCode>
void run_observed(const char* name, const HostCode& kernel) {
  const bool is_observed = observe::are_kernels_wanted();
  const std::int64_t start_ns = is_observed ? observe::now_ns() : 0;
  kernel();
  if (C10_UNLIKELY(is_observed)) observe::emit_span("kernel", name, start_ns, observe::now_ns());
}

// The same in windows on `tensors`.
template <typename HostCode, typename... Tensors>
void run_in_windows(const char* name, const HostCode& kernel, const Tensors&... tensors) {
  Windows windows;
  if (C10_UNLIKELY(!is_host_access_free())) (windows.open(tensors), ...);
  run_observed(name, kernel);
}

// The device to make current while a result is allocated; none if it is current.
inline std::optional<c10::Device> to_switch_to(c10::DeviceIndex index) {
  if (C10_LIKELY(index == current_device())) return std::nullopt;
  return c10::Device(c10::DeviceType::PrivateUse1, index);
}

// Checks before every op on the host: raises in a forked child, and during graph capture.
inline void check_call(const char* name) {
  check_process();
  keep_backward_here();
  if (C10_UNLIKELY(is_capturing())) refuse_capture(name);
}

// "aten::add.Tensor", and the plan of the op; both are looked up once for each op.
std::string full_name(const char* name, const char* overload_name);
OpPlan& find_plan(const char* name, const char* overload_name);

template <typename Op>
const char* name_of() {
  static const std::string name = full_name(Op::name, Op::overload_name);
  return name.c_str();
}

template <typename Op>
OpPlan& plan_of() {
  static OpPlan& plan = find_plan(Op::name, Op::overload_name);
  return plan;
}

// Whether settings send the op's calls to the boxed path: a program may run them, or the host
// kernel must.
template <typename Op>
bool is_boxed() {
  return plan_of<Op>().boxed_path.load(std::memory_order_relaxed) != 0;
}

// The kernel of the boxed path: one with a choice where the op may run as a program.
c10::KernelFunction boxed_kernel(OpPlan& plan);

// The boxed path of an op of at::_ops.
template <typename Op, typename Schema = typename Op::schema>
struct Boxed;

template <typename Op, typename Return, typename... Arguments>
struct Boxed<Op, Return(Arguments...)> {
  static Return call(c10::DispatchKeySet keys, Arguments... arguments) {
    static const c10::KernelFunction kernel = boxed_kernel(plan_of<Op>());
    return kernel.call<Return, Arguments...>(plan_of<Op>().op, keys, arguments...);
  }
};

}  // namespace npu::ops::hot
