// Argument checks, by file. Each is for ops whose CPU kernels read or write out of bounds if their
// arguments do not fit; table.cpp maps them.
#pragma once

#include "checks/check.h"

namespace npu::ops::checks {

// layers.cpp
void batch_norm(const Given& given);
void batch_norm_without_statistics(const Given& given);
void batch_norm_training(const Given& given);
void batch_norm_inference(const Given& given);
void batch_norm_backward(const Given& given);
void weight_norm(const Given& given);
void weight_norm_backward(const Given& given);
void lstm_cell_backward(const Given& given);
void gru_cell_backward(const Given& given);
void quantized_lstm_cell(const Given& given);
void attention_projection(const Given& given);
void dynamic_int4_product(const Given& given);
void dynamic_int4_weight(const Given& given);
void saturated_weight(const Given& given);

// windows.cpp
template <int kAxes>
void reflection_pad_backward(const Given& given);
template <int kAxes>
void replication_pad_backward(const Given& given);
template <int kAxes>
void fractional_max_pool_backward(const Given& given);
template <int kAxes>
void adaptive_average_pool(const Given& given);
void slow_convolution(const Given& given);
void slow_convolution_backward(const Given& given);
void nnpack_convolution(const Given& given);

// indices.cpp
void rows_to_coordinates(const Given& given);
void coordinates_to_rows(const Given& given);
void running_extreme(const Given& given);
void log_cumulative_sum(const Given& given);
void batch_axis(const Given& given);
void embedding_bag_backward(const Given& given);
void embedding_backward(const Given& given);

// matrices.cpp
void fourier_of_real(const Given& given);
void fourier(const Given& given);
void distances_backward(const Given& given);
void own_distances_backward(const Given& given);
void cholesky_solve(const Given& given);

// lists.cpp
void joined(const Given& given);
void copied_list(const Given& given);
void fused_sgd(const Given& given);
void fused_adam(const Given& given);
void fused_adagrad(const Given& given);
void functional_copy(const Given& given);
void nested_from_padded(const Given& given);
void nested_sizes(const Given& given);

}  // namespace npu::ops::checks
