// The table of argument checks.

#include "checks/table.h"

#include <string_view>

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

// A name without an overload means all overloads: `out` forms have the same first arguments.
struct Row {
  std::string_view op;
  ArgumentCheck check;
};

constexpr Row kRows[] = {
    {"native_batch_norm", batch_norm},
    {"_native_batch_norm_legit.no_stats", batch_norm_without_statistics},
    {"_native_batch_norm_legit.no_stats_out", batch_norm_without_statistics},
    {"_native_batch_norm_legit", batch_norm},
    {"_batch_norm_with_update", batch_norm_training},
    {"_batch_norm_no_update", batch_norm_inference},
    {"native_batch_norm_backward", batch_norm_backward},
    {"batch_norm_backward", batch_norm_backward},
    {"_weight_norm_interface", weight_norm},
    {"_weight_norm_interface_backward", weight_norm_backward},
    {"reflection_pad1d_backward", reflection_pad_backward<1>},
    {"reflection_pad2d_backward", reflection_pad_backward<2>},
    {"reflection_pad3d_backward", reflection_pad_backward<3>},
    {"replication_pad1d_backward", replication_pad_backward<1>},
    {"replication_pad2d_backward", replication_pad_backward<2>},
    {"replication_pad3d_backward", replication_pad_backward<3>},
    {"fractional_max_pool2d_backward", fractional_max_pool_backward<2>},
    {"fractional_max_pool3d_backward", fractional_max_pool_backward<3>},
    {"_adaptive_avg_pool2d", adaptive_average_pool<2>},
    {"_adaptive_avg_pool3d", adaptive_average_pool<3>},
    {"_slow_conv2d_forward", slow_convolution},
    {"_slow_conv2d_backward", slow_convolution_backward},
    {"_nnpack_spatial_convolution", nnpack_convolution},
    {"_thnn_differentiable_lstm_cell_backward", lstm_cell_backward},
    {"_thnn_differentiable_gru_cell_backward", gru_cell_backward},
    {"quantized_lstm_cell", quantized_lstm_cell},
    {"_transform_bias_rescale_qkv", attention_projection},
    {"_dyn_quant_matmul_4bit", dynamic_int4_product},
    {"_dyn_quant_pack_4bit_weight", dynamic_int4_weight},
    {"_saturate_weight_to_fp16", saturated_weight},
    {"_convert_indices_from_csr_to_coo", rows_to_coordinates},
    {"_convert_indices_from_coo_to_csr", coordinates_to_rows},
    {"_cummax_helper", running_extreme},
    {"_cummin_helper", running_extreme},
    {"_logcumsumexp.out", log_cumulative_sum},
    {"_remove_batch_dim", batch_axis},
    {"_fft_r2c", fourier_of_real},
    {"_fft_c2r", fourier},
    {"_fft_c2c", fourier},
    {"_cdist_backward", distances_backward},
    {"_pdist_backward", own_distances_backward},
    {"_cholesky_solve_helper", cholesky_solve},
    {"_embedding_bag_dense_backward", embedding_bag_backward},
    {"embedding_dense_backward", embedding_backward},
    {"_stack", joined},
    {"_foreach_copy", copied_list},
    {"_fused_sgd_", fused_sgd},
    {"_fused_adam_", fused_adam},
    {"_fused_adamw_", fused_adam},
    {"_fused_adagrad_", fused_adagrad},
    {"copy", functional_copy},
    {"_nested_from_padded", nested_from_padded},
    {"_nested_compute_contiguous_strides_offsets", nested_sizes},
};

constexpr std::string_view kNamespace = "aten::";

}  // namespace

ArgumentCheck argument_check_of(const std::string& op) {
  if (!op.starts_with(kNamespace)) return nullptr;
  const std::string_view name = std::string_view(op).substr(kNamespace.size());
  const std::string_view base = name.substr(0, name.find('.'));
  ArgumentCheck general = nullptr;
  for (const Row& row : kRows) {
    if (row.op == name) return row.check;
    if (row.op == base) general = row.check;
  }
  return general;
}

const std::vector<const char*>& checked_compositions() {
  static const std::vector<const char*> names{
      "_thnn_differentiable_lstm_cell_backward",
      "_thnn_differentiable_gru_cell_backward",
      "quantized_lstm_cell",
      "_remove_batch_dim",
  };
  return names;
}

}  // namespace npu::ops::checks
