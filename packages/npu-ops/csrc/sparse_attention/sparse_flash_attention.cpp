// Attention over selected positions: gather and attention in one, thirty-two positions at a time.
//
// A thread has one query and all of its heads, so that each gathered row is packed once for all
// heads while in cache; with fewer queries than threads, the heads are divided.

#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "fused/check.h"
#include "sparse_attention/arguments.h"
#include "sparse_attention/ops.h"

namespace npu::ops::sparse_attention {
namespace {

constexpr const char* kSparseFlashAttention = "sparse_flash_attention";
constexpr std::int64_t kLeastHeads = 8;  // of a thread's part

struct Attention {
  Addressing addressing;
  const at::Tensor& value;
  const at::Tensor& indices;
  std::int64_t block_size;
  const OptionalTensor& query_rope;
  const OptionalTensor& key_rope;
};

void check_rope(const Attention& call) {
  TORCH_CHECK_VALUE(
      call.query_rope.has_value() == call.key_rope.has_value(),
      "npu.sparse_flash_attention: `query_rope` and `key_rope` must be given together, got only ",
      call.query_rope ? "query_rope" : "key_rope", ". Pass both or neither. [op-shape]");
  if (!call.query_rope) return;
  check_beside(kSparseFlashAttention, "query_rope", *call.query_rope, "query",
               call.addressing.query);
  check_beside(kSparseFlashAttention, "key_rope", *call.key_rope, "key", call.addressing.key);
  TORCH_CHECK_VALUE(
      call.query_rope->sym_size(-1) == call.key_rope->sym_size(-1),
      "npu.sparse_flash_attention: `query_rope` and `key_rope` must have the same width, "
      "got query_rope ",
      fused::shape_of(*call.query_rope), ", key_rope ", fused::shape_of(*call.key_rope),
      ". Rotate the same width of both. [op-shape]");
}

void check_sparse_attention(const Attention& call) {
  check_addressing(call.addressing);
  const at::Tensor& query = call.addressing.query;
  check_beside(kSparseFlashAttention, "value", call.value, "key", call.addressing.key);
  check_rope(call);
  TORCH_CHECK_VALUE(call.indices.scalar_type() == at::kInt,
                    "npu.sparse_flash_attention: `sparse_indices` must be int32, got ",
                    fused::dtype_of(call.indices), ". Convert it with .to(). [op-dtype]");
  const auto outer = query.sym_sizes().slice(0, query.dim() - 2);
  TORCH_CHECK_VALUE(
      call.indices.dim() == query.dim() && call.indices.sym_size(-2) == 1 &&
          call.indices.sym_sizes().slice(0, query.dim() - 2) == outer,
      "npu.sparse_flash_attention: `sparse_indices` must have one row per query, (..., "
      "1, count), got sparse_indices ",
      fused::shape_of(call.indices), ", query ", fused::shape_of(query),
      ". Pass the result of lightning_indexer. [op-shape]");
  TORCH_CHECK_VALUE(
      call.indices.sym_size(-1) >= 1,
      "npu.sparse_flash_attention: `sparse_indices` must have at least one column, got ",
      fused::shape_of(call.indices), ". Select at least one position. [op-value]");
  TORCH_CHECK_VALUE(call.block_size >= 1 && call.block_size <= kMostPositions,
                    "npu.sparse_flash_attention: `sparse_block_size` must be between 1 and ",
                    kMostPositions, ", got ", call.block_size,
                    ". Pass 1 for single positions. [op-value]");
}

// Every index of a query that is not padding is -1 or a block that begins within the sequence.
void check_indices(const Attention& call, const Sequences& sequences, const std::int32_t* indices) {
  const std::int64_t count = call.indices.size(-1);
  for (const Sequence& sequence : sequences.list) {
    const std::int64_t blocks = (sequence.keys + call.block_size - 1) / call.block_size;
    const std::int32_t* row = indices + sequence.first_row * count;
    for (std::int64_t i = 0; i < sequence.queries * count; ++i)
      TORCH_CHECK_VALUE(row[i] >= -1 && row[i] < blocks,
                        "npu.sparse_flash_attention: `sparse_indices` must be -1 or below the "
                        "sequence's number of blocks, got ",
                        row[i], " for query ", i / count, " of sequence ", sequence.batch, " of ",
                        blocks, " blocks. Pass -1 for none. [op-index]");
  }
}

// The visible positions among the selected ones of a query, in selection order.
void positions_of(const std::int32_t* indices, std::int64_t count, std::int64_t block_size,
                  std::int64_t visible, std::vector<std::int64_t>& out) {
  out.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0) continue;
    const std::int64_t first = indices[i] * block_size;
    for (std::int64_t p = first; p < std::min(first + block_size, visible); ++p)
      out.push_back(p);
  }
}

// The tensors in the loops' form.
struct Dense {
  at::Tensor query, key, value, indices, query_rope, key_rope;

  explicit Dense(const Attention& call)
      : query(call.addressing.query.contiguous()),
        key(with_dense_rows(call.addressing.key)),
        value(with_dense_rows(call.value)),
        indices(call.indices.contiguous()),
        query_rope(call.query_rope ? call.query_rope->contiguous() : at::Tensor()),
        key_rope(call.key_rope ? with_dense_rows(*call.key_rope) : at::Tensor()) {}

  int heads() const { return static_cast<int>(query.size(-2)); }
  int plain_width() const { return static_cast<int>(query.size(-1)); }
  int rope_width() const {
    return query_rope.defined() ? static_cast<int>(query_rope.size(-1)) : 0;
  }
  int value_width() const { return static_cast<int>(value.size(-1)); }
};

// Scratch memory of a thread.
struct Scratch {
  std::vector<float> queries, keys, values, scores, largest, sums, totals;
  std::vector<std::int64_t> positions;

  Scratch(const Dense& dense, int heads)
      : queries(std::size_t(heads) * (dense.plain_width() + dense.rope_width())),
        keys(std::size_t(kMostRows) * (dense.plain_width() + dense.rope_width())),
        values(std::size_t(kMostRows) * rounded_up(dense.value_width())),
        scores(std::size_t(heads) * kMostRows),
        largest(heads),
        sums(heads),
        totals(std::size_t(heads) * rounded_up(dense.value_width())) {}
};

void widen_queries(const Dense& dense, std::int64_t row, int first_head, int heads, float* to) {
  const SparseKernels& kernels = sparse_kernels();
  const int width = dense.plain_width(), rope = dense.rope_width();
  const auto widen = [&](const at::Tensor& from, int head, int size, float* out) {
    const std::int64_t at = (row * dense.heads() + first_head + head) * size;
    kernels.widen(static_cast<const char*>(from.const_data_ptr()) + at * from.element_size(),
                  element_of(from), size, out);
  };
  for (int head = 0; head < heads; ++head, to += width + rope) {
    widen(dense.query, head, width, to);
    if (rope != 0) widen(dense.query_rope, head, rope, to + width);
  }
}

struct CacheRows {
  KeyRows key, value;
  std::optional<KeyRows> rope;

  CacheRows(const Dense& dense, Layout layout, const Sequences& all, const Sequence& sequence)
      : key(dense.key, layout, all, sequence), value(dense.value, layout, all, sequence) {
    if (dense.key_rope.defined()) rope.emplace(dense.key_rope, layout, all, sequence);
  }
};

// Heads [first_head, first_head + heads) of one query over the positions in `scratch`.
void attend(const Dense& dense, const CacheRows& rows, std::int64_t row, int first_head, int heads,
            float scale, Scratch& scratch, char* out) {
  const SparseKernels& kernels = sparse_kernels();
  const Element element = element_of(dense.query);
  const int plain = dense.plain_width(), width = plain + dense.rope_width();
  widen_queries(dense, row, first_head, heads, scratch.queries.data());
  std::fill(scratch.largest.begin(), scratch.largest.end(),
            -std::numeric_limits<float>::infinity());
  std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0F);
  std::fill(scratch.totals.begin(), scratch.totals.end(), 0.0F);
  const HeadGroup group{scratch.queries.data(),
                        heads,
                        width,
                        dense.value_width(),
                        scale,
                        scratch.largest.data(),
                        scratch.sums.data(),
                        scratch.totals.data()};
  const std::int64_t size = static_cast<std::int64_t>(scratch.positions.size());
  for (std::int64_t start = 0; start < size; start += kMostRows) {
    const int count = static_cast<int>(std::min<std::int64_t>(kMostRows, size - start));
    for (int i = 0; i < count; ++i) {
      const std::int64_t position = scratch.positions[start + i];
      float* block = scratch.keys.data() + std::size_t(i / kBlock) * kBlock * width;
      kernels.pack_key(rows.key.at(position), element, plain, i % kBlock, block);
      if (rows.rope)
        kernels.pack_key(rows.rope->at(position), element, width - plain, i % kBlock,
                         block + std::size_t(plain) * kBlock);
      kernels.pack_value(rows.value.at(position), element, dense.value_width(), i,
                         scratch.values.data());
    }
    kernels.attend(group, scratch.keys.data(), scratch.values.data(), count, scratch.scores.data());
  }
  kernels.finish(group, element, out);
}

}  // namespace

at::Tensor sparse_flash_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& sparse_indices,
                                  double scale_value, std::int64_t sparse_block_size,
                                  const OptionalTensor& block_table,
                                  const OptionalTensor& query_lengths,
                                  const OptionalTensor& key_lengths,
                                  const OptionalTensor& query_rope, const OptionalTensor& key_rope,
                                  std::string_view layout_query, std::string_view layout_kv,
                                  std::int64_t sparse_mode) {
  const Attention call{
      {kSparseFlashAttention, "key", "actual_seq_lengths_kv", "layout_kv", query, key,
       query_lengths, key_lengths, block_table, layout_query, layout_kv, sparse_mode},
      value,
      sparse_indices,
      sparse_block_size,
      query_rope,
      key_rope};
  check_sparse_attention(call);
  const Sequences sequences = sequences_of(call.addressing);
  const Dense dense(call);
  const auto* indices = dense.indices.const_data_ptr<std::int32_t>();
  check_indices(call, sequences, indices);

  c10::DimVector sizes(query.sizes().begin(), query.sizes().end());
  sizes.back() = value.size(-1);
  const at::Tensor result = at::zeros(sizes, query.options());
  std::vector<const Sequence*> of_row(sequences.rows, nullptr);
  std::vector<CacheRows> caches;
  for (const Sequence& sequence : sequences.list) {
    caches.emplace_back(dense, key_layout_of(call.addressing), sequences, sequence);
    for (std::int64_t i = 0; i < sequence.queries; ++i)
      of_row[sequence.first_row + i] = &sequence;
  }
  const std::int64_t threads = at::get_num_threads(), heads = dense.heads();
  const std::int64_t parts =
      std::clamp<std::int64_t>(threads / std::max<std::int64_t>(sequences.rows, 1), 1,
                               std::max<std::int64_t>(heads / kLeastHeads, 1));
  const std::int64_t part = (heads + parts - 1) / parts;
  const std::int64_t head_bytes = dense.value_width() * result.element_size();
  auto* out = static_cast<char*>(result.mutable_data_ptr());
  at::parallel_for(0, sequences.rows * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch(dense, static_cast<int>(part));
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t row = item / parts, first = item % parts * part;
      const Sequence* sequence = of_row[row];
      if (sequence == nullptr || first >= heads) continue;
      const std::int64_t count = dense.indices.size(-1);
      positions_of(indices + row * count, count, sparse_block_size,
                   sequence->visible(row - sequence->first_row, sparse_mode), scratch.positions);
      if (scratch.positions.empty()) continue;
      attend(dense, caches[sequence->batch], row, static_cast<int>(first),
             static_cast<int>(std::min(part, heads - first)), static_cast<float>(scale_value),
             scratch, out + (row * heads + first) * head_bytes);
    }
  });
  return result;
}

at::Tensor sparse_flash_attention_fake(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& sparse_indices, double scale_value, std::int64_t sparse_block_size,
    const OptionalTensor& block_table, const OptionalTensor& query_lengths,
    const OptionalTensor& key_lengths, const OptionalTensor& query_rope,
    const OptionalTensor& key_rope, std::string_view layout_query, std::string_view layout_kv,
    std::int64_t sparse_mode) {
  check_sparse_attention(
      {{kSparseFlashAttention, "key", "actual_seq_lengths_kv", "layout_kv", query, key,
        query_lengths, key_lengths, block_table, layout_query, layout_kv, sparse_mode},
       value,
       sparse_indices,
       sparse_block_size,
       query_rope,
       key_rope});
  c10::SymDimVector sizes(query.sym_sizes().begin(), query.sym_sizes().end());
  sizes.back() = value.sym_size(-1);
  return at::empty_symint(sizes, query.options());
}

}  // namespace npu::ops::sparse_attention
