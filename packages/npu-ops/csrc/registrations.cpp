// Registrations of all kernels for aten ops on npu.
//
// In order: our own kernels, torch's device-independent kernels, ops that may run as programs, CPU
// kernels on aliases for every other op that has one, and the catch-all for ops of other wheels.

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "checks/table.h"
#include "fallback.h"
#include "hot/kernels.h"
#include "kernels.h"
#include "rms_norm.h"
#include "variants/variant_kernel.h"

namespace npu::ops {
namespace {

torch::CppFunction host_kernel(const c10::OperatorHandle& op) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(plan_of(op)));
}

// Registers our own kernels, and records their ops.
class OwnKernels {
 public:
  explicit OwnKernels(torch::Library& library) : library_(library) {}

  template <typename Kernel>
  void operator()(const char* name, Kernel&& kernel) {
    names_.insert(name);
    library_.impl(name, std::forward<Kernel>(kernel));
  }

  // Kernels that need no aliases, for ops without a kernel so far.
  void hot(const std::vector<hot::HotKernel>& kernels) {
    for (const hot::HotKernel& kernel : kernels) {
      if (!names_.insert(kernel.name).second) continue;
      library_.impl(kernel.name, kernel.make());
      const std::string_view name = kernel.name;
      const std::size_t dot = std::min(name.find('.'), name.size());
      plan_of(c10::Dispatcher::singleton().findSchemaOrThrow(
          (kNamespace + std::string(name.substr(0, dot))).c_str(),
          std::string(name.substr(std::min(dot + 1, name.size()))).c_str()));
    }
  }

  // The CPU kernel on aliases for every other aten op that has one under `cpu_key`.
  void rest_on_host(c10::DispatchKey cpu_key) {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(cpu_key)) {
      if (!name.name.starts_with(kNamespace)) continue;
      const auto op = dispatcher.findSchema(name);
      if (op) on_host(*op);
    }
  }

  // The composition of an op that has no kernel on any device, after a check.
  void checked_compositions() {
    for (const char* name : checks::checked_compositions()) {
      OpPlan& plan =
          plan_of(c10::Dispatcher::singleton().findSchemaOrThrow((kNamespace + name).c_str(), ""));
      library_.impl(name, torch::CppFunction::makeFromBoxedFunctor(
                              std::make_unique<CheckedComposition>(plan)));
    }
  }

  void on_host(const char* name, const char* overload = "") {
    on_host(c10::Dispatcher::singleton().findSchemaOrThrow((kNamespace + name).c_str(), overload));
  }

  // A program if it is faster, else the CPU kernel on aliases.
  void with_program(const char* name, const char* overload = "") {
    const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow((kNamespace + name).c_str(), overload);
    OpPlan& plan = plan_of(op);
    const std::string short_name = plan.name.substr(kNamespace.size());
    plan.has_host_kernel = true;
    if (!names_.insert(short_name).second) {  // a hot kernel; its boxed path finds the program
      variants::declare(plan);
      return;
    }
    library_.impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                          std::make_unique<variants::VariantKernel>(plan)));
  }

 private:
  void on_host(const c10::OperatorHandle& op) {
    OpPlan& plan = plan_of(op);
    const std::string name = plan.name.substr(kNamespace.size());
    if (!names_.insert(name).second) return;
    plan.has_host_kernel = true;
    library_.impl(name.c_str(), host_kernel(op));
  }

  inline static const std::string kNamespace = "aten::";
  torch::Library& library_;
  std::unordered_set<std::string> names_;
};

// Ops with enough work for a program: products, convolutions, attention, norms, softmax,
// activations, lookups, pooling and interpolation, with their gradients.
constexpr const char* kProgramOps[] = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "native_batch_norm",
    "_softmax",
    "_softmax_backward_data",
    "_log_softmax",
    "_log_softmax_backward_data",
    "relu",
    "gelu",
    "gelu_backward",
    "silu",
    "silu_backward",
    "sigmoid",
    "sigmoid_backward",
    "tanh",
    "tanh_backward",
    "elu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "mish",
    "softplus",
    "threshold_backward",
    "embedding",
    "embedding_dense_backward",
    "max_pool2d_with_indices",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_bilinear2d",
};

// The CPU chooses between flash and plain attention, on the aliases.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask,
                              double dropout_p, bool is_causal, std::optional<double> scale,
                              bool enable_gqa) {
  return at::_fused_sdp_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
}

// Torch's own kernel copies a quantized tensor with gaps on its source device.
at::Tensor to_copy_quantized(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<at::Device> device,
                             std::optional<bool> pin_memory, bool non_blocking,
                             std::optional<at::MemoryFormat> memory_format) {
  return at::native::_to_copy(self.is_non_overlapping_and_dense() ? self : self.contiguous(), dtype,
                              layout, device, pin_memory, non_blocking, memory_format);
}

// The host kernel behind the fused op on npu, which torch lacks for the CPU.
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  OwnKernels impl(m);
  impl("empty.memory_format", TORCH_FN(empty));
  impl("empty_strided", TORCH_FN(empty_strided));
  impl("copy_", TORCH_FN(copy_));
  impl("_copy_from", TORCH_FN(copy_from));
  impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  impl("set_", TORCH_FN(set_to_nothing));
  impl("record_stream", TORCH_FN(record_stream));
  impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  impl("convolution_overrideable", TORCH_FN(convolution_overrideable));
  impl("convolution_backward_overrideable", TORCH_FN(convolution_backward_overrideable));
  impl("_thnn_fused_lstm_cell", TORCH_FN(fused_lstm_cell));
  impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(fused_lstm_cell_backward));
  impl("_thnn_fused_gru_cell", TORCH_FN(fused_gru_cell));
  impl("_thnn_fused_gru_cell_backward", TORCH_FN(fused_gru_cell_backward));
  impl("native_dropout", TORCH_FN(native_dropout));
  impl("histc", TORCH_FN(histc));

  impl("view", TORCH_FN(at::native::view));
  impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  impl("_reshape_alias", TORCH_FN(reshape_alias));
  impl("unfold", TORCH_FN(at::native::unfold));
  impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
  impl("resize_", TORCH_FN(resize_));
  impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  impl("set_.source_Storage",
       static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));

  // Torch composes these per backend, and on npu the composition would end in "overrideable".
  impl.on_host("_convolution");
  // Also composed, with a kernel that torch looks up by device and has only for its own devices.
  for (const char* overload : {"", "periodic", "beta"})
    impl.on_host("kaiser_window", overload);
  impl.on_host("conj_physical_");
  impl.on_host("_batch_norm_no_update");
  impl.on_host("range", "out_");   // calls the CPU's kernel by name
  impl.on_host("mode", "values");  // checks a list of devices by name
  impl.on_host("addr_");           // its kernel compares C++ references, which boxing would lose

  // Composed of ops that read CPU memory.
  impl.on_host("_nnpack_spatial_convolution");
  impl.on_host("_saturate_weight_to_fp16");
  impl.on_host("_foreach_copy");
  impl.checked_compositions();

  hot::register_stubs();
  impl.hot(hot::pointwise_kernels());
  impl.hot(hot::byte_kernels());
  for (const char* name : kProgramOps)
    impl.with_program(name);
  impl.rest_on_host(c10::DispatchKey::CPU);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  OwnKernels impl(m);

  impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  impl("_indices", TORCH_FN(at::native::_indices_sparse));
  impl("_values", TORCH_FN(at::native::_values_sparse));
  impl("indices", TORCH_FN(at::native::indices_sparse));
  impl("values", TORCH_FN(at::native::values_sparse));

  impl.checked_compositions();
  impl.rest_on_host(c10::DispatchKey::SparseCPU);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  OwnKernels impl(m);

  impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  impl("values", TORCH_FN(at::native::values_sparse_csr));

  impl.on_host("copy");  // composed of ops that need a storage, which these tensors lack
  impl.checked_compositions();
  impl.rest_on_host(c10::DispatchKey::SparseCsrCPU);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  OwnKernels impl(m);
  impl("copy_", TORCH_FN(copy_));
  impl("_copy_from", TORCH_FN(copy_from));
  impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  impl("set_.source_Storage",
       static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_quantized_));
  impl("_to_copy", TORCH_FN(to_copy_quantized));

  impl.checked_compositions();
  impl.rest_on_host(c10::DispatchKey::QuantizedCPU);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  OwnKernels(m).checked_compositions();
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
