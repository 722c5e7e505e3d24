// Kernels and fakes of the sparse attention ops, by file. Registered in
// csrc/sparse_attention/registrations.cpp; schemas, formulas and gradients are in
// src/npu_ops/sparse_attention.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace npu::ops::sparse_attention {

using OptionalTensor = std::optional<at::Tensor>;

// lightning_indexer.cpp
at::Tensor lightning_indexer(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& weights, const OptionalTensor& query_lengths,
                             const OptionalTensor& key_lengths, const OptionalTensor& block_table,
                             std::string_view layout_query, std::string_view layout_key,
                             std::int64_t sparse_count, std::int64_t sparse_mode,
                             const OptionalTensor& query_scale, const OptionalTensor& key_scale);
at::Tensor lightning_indexer_fake(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& weights, const OptionalTensor& query_lengths,
                                  const OptionalTensor& key_lengths,
                                  const OptionalTensor& block_table, std::string_view layout_query,
                                  std::string_view layout_key, std::int64_t sparse_count,
                                  std::int64_t sparse_mode, const OptionalTensor& query_scale,
                                  const OptionalTensor& key_scale);

// sparse_flash_attention.cpp
at::Tensor sparse_flash_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& sparse_indices,
                                  double scale_value, std::int64_t sparse_block_size,
                                  const OptionalTensor& block_table,
                                  const OptionalTensor& query_lengths,
                                  const OptionalTensor& key_lengths,
                                  const OptionalTensor& query_rope, const OptionalTensor& key_rope,
                                  std::string_view layout_query, std::string_view layout_kv,
                                  std::int64_t sparse_mode);
at::Tensor sparse_flash_attention_fake(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& sparse_indices, double scale_value, std::int64_t sparse_block_size,
    const OptionalTensor& block_table, const OptionalTensor& query_lengths,
    const OptionalTensor& key_lengths, const OptionalTensor& query_rope,
    const OptionalTensor& key_rope, std::string_view layout_query, std::string_view layout_kv,
    std::int64_t sparse_mode);

}  // namespace npu::ops::sparse_attention
