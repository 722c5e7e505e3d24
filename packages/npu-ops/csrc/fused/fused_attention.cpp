// softmax(scale * q k^T + mask) v for grouped heads, causal, in a sliding window, over a cache that
// is updated in place. It uses torch's flash kernel: heads of a group share keys by strides of 0,
// and a window removes keys that no query of a block sees.

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "check.h"
#include "ops.h"

namespace npu::ops::fused {
namespace {

constexpr const char* kFusedAttention = "fused_attention";
constexpr const char* kAxes = "(batch, heads, length, head size)";
using Window = std::optional<std::int64_t>;

void check_window(Window window, bool is_causal) {
  TORCH_CHECK_VALUE(!window || *window >= 1,
                    "npu.fused_attention: `window` must be at least 1, got ", *window,
                    ". Pass None to attend to all earlier keys. [op-value]");
  TORCH_CHECK_VALUE(!window || is_causal,
                    "npu.fused_attention: `is_causal` must be True with a window, got window ",
                    *window, ", is_causal False. Pass both, or neither. [op-value]");
}

void check_heads(const at::Tensor& query, const char* name, const at::Tensor& other) {
  check_rank(kFusedAttention, name, other, 4, kAxes);
  check_same_dtype(kFusedAttention, name, other, "query", query);
  TORCH_CHECK_VALUE(other.sym_size(0) == query.sym_size(0), "npu.fused_attention: `", name,
                    "` must have the batch size of `query`, got ", name, " ", shape_of(other),
                    ", query ", shape_of(query), ". Expand one of them. [op-shape]");
}

void check_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     bool is_causal, Window window) {
  check_float(kFusedAttention, "query", query);
  check_rank(kFusedAttention, "query", query, 4, kAxes);
  check_heads(query, "key", key);
  check_heads(query, "value", value);
  TORCH_CHECK_VALUE(
      key.sym_size(1) >= 1 && query.sym_size(1) % key.sym_size(1) == 0,
      "npu.fused_attention: the heads of `key` must divide the heads of `query`, got key ",
      shape_of(key), ", query ", shape_of(query),
      ". Pass the same number of query heads for each key head. [op-shape]");
  TORCH_CHECK_VALUE(key.sym_sizes() == value.sym_sizes() && key.sym_size(3) == query.sym_size(3),
                    "npu.fused_attention: `key` and `value` must have the same shape and the head "
                    "size of `query`, got key ",
                    shape_of(key), ", value ", shape_of(value), ", query ", shape_of(query),
                    ". Project both to one head size. [op-shape]");
  TORCH_CHECK_VALUE(
      !is_causal || query.sym_size(2) <= key.sym_size(2),
      "npu.fused_attention: causal queries must be at the last positions of the keys, got ",
      query.sym_size(2), " queries, ", key.sym_size(2),
      " keys. Pass the keys of all queries. [op-shape]");
  check_window(window, is_causal);
}

void check_cache(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const at::Tensor& key_cache, const at::Tensor& value_cache,
                 const c10::SymInt& position, Window window) {
  check_attention(query, key, value, /*is_causal=*/true, window);
  TORCH_CHECK_VALUE(
      query.sym_size(2) == key.sym_size(2),
      "npu.fused_attention: `key` and `value` must have the length of `query` with a cache, got ",
      query.sym_size(2), " queries, ", key.sym_size(2),
      " keys. Pass only the keys of the new tokens. [op-shape]");
  check_heads(query, "key_cache", key_cache);
  check_heads(query, "value_cache", value_cache);
  TORCH_CHECK_VALUE(key_cache.sym_sizes() == value_cache.sym_sizes() &&
                        key_cache.sym_size(1) == key.sym_size(1) &&
                        key_cache.sym_size(3) == key.sym_size(3),
                    "npu.fused_attention: `key_cache` and `value_cache` must be (batch, key heads, "
                    "capacity, head size), got key_cache ",
                    shape_of(key_cache), ", value_cache ", shape_of(value_cache), ", key ",
                    shape_of(key), ". Allocate both with the heads of `key`. [op-shape]");
  TORCH_CHECK_VALUE(
      position >= 0 && position + key.sym_size(2) <= key_cache.sym_size(2),
      "npu.fused_attention: `position` plus the new tokens must fit into the cache, got "
      "position ",
      position, ", ", key.sym_size(2), " tokens, capacity ", key_cache.sym_size(2),
      ". Allocate a larger cache, or start at 0. [op-value]");
}

// 0 where query `i` (at position offset + i) sees key `j`, -inf elsewhere.
at::Tensor causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t offset, Window window,
                       const at::TensorOptions& options) {
  const auto indices = options.dtype(at::kLong);
  const at::Tensor position = at::arange(queries, indices).add_(offset).unsqueeze(1);
  const at::Tensor key = at::arange(keys, indices);
  at::Tensor hidden = key > position;
  if (window) hidden.logical_or_(key <= position - *window);
  return at::zeros({queries, keys}, options)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

// Attention of grouped heads: q (items, group, length, size), k and v (items, 1, keys, size).
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool is_causal,
                  const std::optional<at::Tensor>& mask, double scale) {
  const at::Tensor keys = k.expand({-1, q.size(1), -1, -1});
  const at::Tensor values = v.expand({-1, q.size(1), -1, -1});
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, keys, values, 0.0,
                                                                     is_causal, mask, scale));
}

at::Tensor with_dense_rows(const at::Tensor& x) {
  return x.stride(3) == 1 ? x : x.contiguous();
}

// Blocks of queries, each over the keys that its window reaches.
at::Tensor attend_in_window(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            std::int64_t window, double scale) {
  const std::int64_t length = q.size(2), offset = k.size(2) - length;
  const std::int64_t block = std::clamp<std::int64_t>(window, 64, 1024);
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < length; first += block) {
    const std::int64_t count = std::min(block, length - first);
    const std::int64_t begin = std::max<std::int64_t>(0, offset + first - window + 1);
    const std::int64_t keys = offset + first + count - begin;
    std::optional<at::Tensor> mask;
    if (count > 1) mask = causal_mask(count, keys, offset + first - begin, window, q.options());
    parts.push_back(attend(q.narrow(2, first, count), k.narrow(2, begin, keys),
                           v.narrow(2, begin, keys), false, mask, scale));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     bool is_causal, Window window, std::optional<double> given_scale) {
  const std::int64_t batch = query.size(0), heads = query.size(1), shared = key.size(1);
  const std::int64_t length = query.size(2), size = query.size(3), keys = key.size(2);
  if (query.numel() == 0) return at::empty(query.sizes(), query.options());
  // Without keys the result is 0, as in torch.
  if (keys == 0) return at::zeros(query.sizes(), query.options());
  const double scale = given_scale.value_or(1.0 / std::sqrt(static_cast<double>(size)));
  const std::int64_t items = batch * shared, group = heads / shared;
  const at::Tensor q = with_dense_rows(query).reshape({items, group, length, size});
  const at::Tensor k = with_dense_rows(key).reshape({items, 1, keys, size});
  const at::Tensor v = with_dense_rows(value).reshape({items, 1, keys, size});
  at::Tensor result;
  if (window && *window < keys) {
    result = attend_in_window(q, k, v, *window, scale);
  } else if (is_causal && length > 1 && length < keys) {
    const at::Tensor mask = causal_mask(length, keys, keys - length, std::nullopt, query.options());
    result = attend(q, k, v, false, mask, scale);
  } else {
    result = attend(q, k, v, is_causal && length > 1, std::nullopt, scale);
  }
  return result.contiguous().view({batch, heads, length, size});
}

void check_no_gradient(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const at::Tensor& key_cache, const at::Tensor& value_cache) {
  if (!at::GradMode::is_enabled()) return;
  const bool is_needed = query.requires_grad() || key.requires_grad() || value.requires_grad() ||
                         key_cache.requires_grad() || value_cache.requires_grad();
  TORCH_CHECK(!is_needed,
              "npu.fused_attention: arguments must not require a gradient with a cache, which is "
              "written in place, got one that does. Call it under torch.no_grad(), or without the "
              "cache. [op-gradient]");
}

using CacheSchema = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&,
                               at::Tensor&, c10::SymInt, Window, std::optional<double>);

const c10::TypedOperatorHandle<CacheSchema>& cache_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("npu::fused_attention", "cache")
                             .typed<CacheSchema>();
  return op;
}

}  // namespace

at::Tensor fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           bool is_causal, Window window, std::optional<double> scale) {
  check_attention(query, key, value, is_causal, window);
  return attention(query, key, value, is_causal, window, scale);
}

at::Tensor fused_attention_fake(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, bool is_causal, Window window,
                                std::optional<double> scale) {
  check_attention(query, key, value, is_causal, window);
  return at::empty_symint(query.sym_sizes(), query.options());
}

at::Tensor fused_attention_cache(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, at::Tensor& key_cache,
                                 at::Tensor& value_cache, std::int64_t position, Window window,
                                 std::optional<double> scale) {
  check_cache(query, key, value, key_cache, value_cache, position, window);
  const std::int64_t tokens = key.size(2);
  key_cache.narrow(2, position, tokens).copy_(key);
  value_cache.narrow(2, position, tokens).copy_(value);
  return attention(query, key_cache.narrow(2, 0, position + tokens),
                   value_cache.narrow(2, 0, position + tokens), true, window, scale);
}

at::Tensor fused_attention_cache_fake(const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, at::Tensor& key_cache,
                                      at::Tensor& value_cache, c10::SymInt position, Window window,
                                      std::optional<double> scale) {
  check_cache(query, key, value, key_cache, value_cache, position, window);
  return at::empty_symint(query.sym_sizes(), query.options());
}

at::Tensor fused_attention_cache_autograd(c10::DispatchKeySet keys, const at::Tensor& query,
                                          const at::Tensor& key, const at::Tensor& value,
                                          at::Tensor& key_cache, at::Tensor& value_cache,
                                          c10::SymInt position, Window window,
                                          std::optional<double> scale) {
  check_no_gradient(query, key, value, key_cache, value_cache);
  const at::AutoDispatchBelowAutograd below;
  return cache_op().redispatch(keys & c10::after_autograd_keyset, query, key, value, key_cache,
                               value_cache, std::move(position), window, scale);
}

// Bump the cache's version, for observers such as a compiled graph with frozen buffers.
at::Tensor fused_attention_cache_versions(c10::DispatchKeySet keys, const at::Tensor& query,
                                          const at::Tensor& key, const at::Tensor& value,
                                          at::Tensor& key_cache, at::Tensor& value_cache,
                                          c10::SymInt position, Window window,
                                          std::optional<double> scale) {
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor result =
      cache_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, query, key, value, key_cache,
                            value_cache, std::move(position), window, scale);
  torch::autograd::impl::bump_version(key_cache);
  torch::autograd::impl::bump_version(value_cache);
  return result;
}

}  // namespace npu::ops::fused
