// Hot kernels that move or set bytes: fill, cat, and one element as a number. Copies are in
// copies.cpp, which first tries a shortcut here.

#include <cstring>

#include <ATen/TensorIterator.h>
#include <ATen/native/Fill.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/cat_native.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/zero_ops.h>

#include "hot/bytes.h"
#include "hot/kernels.h"
#include "hot/structured.h"

namespace npu::ops::hot {
namespace {

using at::Tensor;
namespace aten = at::_ops;

// Below this, starting threads costs more than they save.
constexpr std::size_t kSmallBytes = std::size_t{32} << 10;

// True for memory that can be copied by address.
bool is_plain(const Tensor& tensor) {
  if (is_npu(tensor)) return is_common(tensor);
  constexpr c10::DispatchKeySet kOdd(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.key_set().has_any(kOdd) && tensor.has_storage() &&
         tensor.storage().data_ptr().get() != nullptr;
}

Tensor& fill(c10::DispatchKeySet keys, Tensor& self, const at::Scalar& value) {
  if (C10_UNLIKELY(!is_common(self) || is_boxed<aten::fill__Scalar>()))
    return Boxed<aten::fill__Scalar>::call(keys, self, value);
  check_call("aten::fill_.Scalar");
  run_in_windows("aten::fill_.Scalar", [&] { at::native::fill_(self, value); }, self);
  return self;
}

Tensor& zero(c10::DispatchKeySet keys, Tensor& self) {
  if (C10_UNLIKELY(!is_common(self) || is_boxed<aten::zero_>()))
    return Boxed<aten::zero_>::call(keys, self);
  check_call("aten::zero_");
  const auto set_to_zero = [&] {
    if (self.nbytes() <= kSmallBytes && self.is_non_overlapping_and_dense()) {
      std::memset(self.mutable_data_ptr(), 0, self.nbytes());
    } else {
      at::native::fill_(self, 0);
    }
  };
  run_in_windows("aten::zero_", set_to_zero, self);
  return self;
}

Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim) {
  Inspection inspection(/*allows_numbers=*/false);
  bool is_one_dtype = true;
  for (const Tensor& tensor : tensors) {
    inspection.see(tensor);
    if (!inspection.is_fit()) break;
    is_one_dtype &= tensor.scalar_type() == tensors.front().scalar_type();
  }
  if (C10_UNLIKELY(!inspection.is_fit() || !is_one_dtype)) {
    return Boxed<aten::cat>::call(keys, tensors, dim);
  }
  check_call("aten::cat");
  const c10::OptionalDeviceGuard guard(to_switch_to(inspection.device_index()));
  Fresh<at::native::structured_cat_out_cpu> op;
  const auto found = op.meta(tensors, dim);
  const auto join = [&] {
    op.impl(tensors, found.dim, found.valid, found.all_contiguous, found.all_same_dtype,
            found.all_same_sizes_and_stride, found.memory_format, op.output);
  };
  Windows windows;
  if (C10_UNLIKELY(!is_host_access_free())) {
    for (const Tensor& tensor : tensors)
      windows.open(tensor);
  }
  run_in_windows("aten::cat", join, op.output);
  return std::move(op.output);
}

}  // namespace

bool copy_plainly(const Tensor& source, const Tensor& destination) {
  if (source.scalar_type() != destination.scalar_type() || destination.nbytes() > kSmallBytes ||
      source.sizes() != destination.sizes() || !source.is_contiguous() ||
      !destination.is_contiguous() || !is_plain(source) || !is_plain(destination) ||
      source.storage().is_alias_of(destination.storage())) {
    return false;
  }
  const HostAccess reading(source.storage().data_ptr().get());
  const HostAccess writing(destination.storage().data_ptr().get());
  std::memcpy(destination.mutable_data_ptr(), source.const_data_ptr(), destination.nbytes());
  return true;
}

std::optional<at::Scalar> plain_number(const Tensor& tensor) {
  if (C10_UNLIKELY(!is_common(tensor) || tensor.numel() != 1)) return std::nullopt;
  const HostAccess reading(tensor.storage().data_ptr().get());
  return at::native::_local_scalar_dense_cpu(tensor);
}

std::vector<HotKernel> byte_kernels() {
  return {
      {"fill_.Scalar", [] { return torch::CppFunction(TORCH_FN(fill)); }},
      {"zero_", [] { return torch::CppFunction(TORCH_FN(zero)); }},
      {"cat", [] { return torch::CppFunction(TORCH_FN(cat)); }},
  };
}

}  // namespace npu::ops::hot
