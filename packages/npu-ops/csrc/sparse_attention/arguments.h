// Checks of layouts, lengths and block tables in both sparse attention ops, and row addresses of
// positions.
//
// Kernels and fakes check shapes and dtypes with the same messages; kernels check values of
// lengths, tables and indices before using them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sparse_attention/kernels.h"

namespace npu::ops::sparse_attention {

using OptionalTensor = std::optional<at::Tensor>;

inline constexpr std::int64_t kMostPositions = 0x7FFFFFFF;  // indices are int32

enum class Layout { kDense, kRagged, kPaged };  // BSND, TND, PA_BSND

// The arguments of both ops, with each op's names.
struct Addressing {
  const char* op;
  const char* key_name;         // "key", for messages
  const char* key_length_name;  // "actual_seq_lengths_key" or "actual_seq_lengths_kv"
  const char* key_layout_name;  // "layout_key" or "layout_kv"
  const at::Tensor& query;
  const at::Tensor& key;
  const OptionalTensor& query_lengths;
  const OptionalTensor& key_lengths;
  const OptionalTensor& block_table;
  std::string_view query_layout, key_layout;
  std::int64_t sparse_mode;
  bool is_indexer = false;  // which takes float16, and int8 with scales
};

// One sequence of a batch: its rows among all query rows, and its keys.
struct Sequence {
  std::int64_t first_row, queries;
  std::int64_t first_key, keys;  // first_key counts within a ragged tensor, else 0
  std::int64_t batch;

  // Number of keys visible to query `i`.
  std::int64_t visible(std::int64_t i, std::int64_t sparse_mode) const {
    if (sparse_mode == 0) return keys;
    return std::clamp<std::int64_t>(keys - (queries - 1 - i), 0, keys);
  }
};

struct Sequences {
  std::vector<Sequence> list;
  std::vector<std::int64_t> pages;  // (batch, pages a sequence), empty without pages
  std::int64_t pages_of_sequence = 0, page_size = 0;
  std::int64_t rows = 0;  // of query, including padding
};

// The rows of one sequence in a tensor with a dense last axis.
class KeyRows {
 public:
  KeyRows(const at::Tensor& tensor, Layout layout, const Sequences& all, const Sequence& sequence);

  const void* at(std::int64_t position) const {
    if (pages_ == nullptr) return base_ + position * inner_;
    return base_ + pages_[position / page_size_] * outer_ + position % page_size_ * inner_;
  }

 private:
  const char* base_;
  std::int64_t outer_, inner_, page_size_;
  const std::int64_t* pages_;
};

Layout key_layout_of(const Addressing& call);
bool is_ragged(const Addressing& call);

// The arguments that a fake can check: shapes, dtypes, layouts and options.
void check_addressing(const Addressing& call);

// `name` must have the sizes of `like` in all axes except the last, and its dtype.
void check_beside(const char* op, const char* name, const at::Tensor& tensor, const char* like_name,
                  const at::Tensor& like);

// Reads lengths and block table, and checks each value that a kernel will use.
Sequences sequences_of(const Addressing& call);

// The tensor itself if its last axis is dense, else a copy.
at::Tensor with_dense_rows(const at::Tensor& tensor);

Element element_of(const at::Tensor& tensor);

}  // namespace npu::ops::sparse_attention
