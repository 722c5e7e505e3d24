// Creates empty npu tensors. Torch composes all other factories (zeros, arange, clone, ...) of
// these two and a fallback.

#include "kernels.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "npu/allocator.h"
#include "npu/device.h"

namespace npu::ops {
namespace {

constexpr c10::DispatchKeySet kNpuKey(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::Layout::Strided) == at::Layout::Strided,
                              "npu: an empty tensor must be strided, got layout ", *layout,
                              ". Create it strided and convert it. [empty-layout]");
  TORCH_CHECK(!pin_memory.value_or(false),
              "npu: only dense CPU tensors can be pinned. Omit `pin_memory`. [pin-memory]");
}

// The device to make current for the allocation; none if it is current already.
std::optional<at::Device> to_switch_to(std::optional<at::Device> device) {
  if (device && device->has_index() && device->index() != current_device()) return device;
  return std::nullopt;
}

at::Tensor fill_when_deterministic(at::TensorBase&& fresh) {
  at::Tensor tensor(std::move(fresh));
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

}  // namespace

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  const c10::OptionalDeviceGuard guard(to_switch_to(device));
  return fill_when_deterministic(at::detail::empty_generic(
      size, device_allocator(), kNpuKey, dtype.value_or(c10::get_default_dtype_as_scalartype()),
      memory_format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const c10::OptionalDeviceGuard guard(to_switch_to(device));
  return fill_when_deterministic(
      at::detail::empty_strided_generic(size, stride, device_allocator(), kNpuKey,
                                        dtype.value_or(c10::get_default_dtype_as_scalartype())));
}

}  // namespace npu::ops
