// Which kernel serves which op on npu: every registration of this library stands here.
//
// In order: bodies of our own, torch's device-independent bodies, CPU kernels on aliases for every op that
// has one, and the catch-all for ops that other wheels bring.

#include <string>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "fallback.h"
#include "kernels.h"

namespace npu::ops {
namespace {

// Ops without a CPU kernel of their own that still run whole on aliases: torch composes them per backend,
// and for npu the composition would take a detour (or end in "overrideable").
constexpr const char* kWholeOnHost[] = {
    "_convolution",
    "convolution",
    "convolution_backward",
};

torch::CppFunction host_kernel(const c10::OperatorHandle& op) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(plan_of(op)));
}

void register_host_kernels(torch::Library& m, const std::unordered_set<std::string>& own) {
  const std::string prefix = "aten::";
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    if (!name.name.starts_with(prefix)) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const std::string short_name = plan_of(*op).name.substr(prefix.size());
    if (!own.contains(short_name)) m.impl(short_name.c_str(), host_kernel(*op));
  }
  for (const char* name : kWholeOnHost) {
    m.impl(name, host_kernel(dispatcher.findSchemaOrThrow((prefix + name).c_str(), "")));
  }
}

// The choice between flash and plain attention is the CPU's, made on the aliases.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                              std::optional<double> scale, bool enable_gqa) {
  return at::_fused_sdp_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  std::unordered_set<std::string> own;
  const auto impl = [&](const char* name, auto&& kernel) {
    own.insert(name);
    m.impl(name, std::forward<decltype(kernel)>(kernel));
  };

  impl("empty.memory_format", TORCH_FN(empty));
  impl("empty_strided", TORCH_FN(empty_strided));
  impl("copy_", TORCH_FN(copy_));
  impl("_copy_from", TORCH_FN(copy_from));
  impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  impl("set_", TORCH_FN(set_to_nothing));
  impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  impl("convolution_overrideable", TORCH_FN(convolution_overrideable));
  impl("convolution_backward_overrideable", TORCH_FN(convolution_backward_overrideable));
  impl("_thnn_fused_lstm_cell", TORCH_FN(fused_lstm_cell));
  impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(fused_lstm_cell_backward));
  impl("_thnn_fused_gru_cell", TORCH_FN(fused_gru_cell));
  impl("_thnn_fused_gru_cell_backward", TORCH_FN(fused_gru_cell_backward));
  impl("native_dropout", TORCH_FN(native_dropout));

  impl("view", TORCH_FN(at::native::view));
  impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  impl("unfold", TORCH_FN(at::native::unfold));
  impl("resize_", TORCH_FN(at::native::resize_));
  impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));

  register_host_kernels(m, own);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace
}  // namespace npu::ops

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &npu::ops::choose_attention)
}  // namespace at::native
