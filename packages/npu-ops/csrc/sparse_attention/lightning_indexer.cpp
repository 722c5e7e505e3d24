// Scores of all visible keys, and the positions of the largest of them.
//
// Keys are packed once for a tile of queries of a sequence; each thread has blocks of keys. Each
// query's positions are then selected with a buffer of candidates, which is cut to the best k when
// full, so that the context is read once and never sorted.

#include <bit>
#include <functional>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "fused/check.h"
#include "sparse_attention/arguments.h"
#include "sparse_attention/ops.h"

namespace npu::ops::sparse_attention {
namespace {

constexpr const char* kLightningIndexer = "lightning_indexer";
constexpr std::int64_t kMostQueries = 32;        // of a tile
constexpr std::int64_t kMostScores = 1 << 22;    // of a tile, 16 MB, unless one query has more
constexpr std::int64_t kMostInt8Width = 131071;  // products of 2^14 each fit into an int32 sum
constexpr std::int64_t kPieceProducts = 200000;  // smaller work does not pay for a thread

struct Indexer {
  Addressing addressing;
  const at::Tensor& weights;
  std::int64_t count;
  const OptionalTensor& query_scale;
  const OptionalTensor& key_scale;
};

// A tensor of scales must be float32 and have the sizes of `like` without its last axis.
void check_scale(const char* name, const OptionalTensor& scale, const char* like_name,
                 const at::Tensor& like) {
  const bool is_needed = like.scalar_type() == at::kChar;
  TORCH_CHECK_VALUE(scale.has_value() == is_needed, "npu.lightning_indexer: `", name,
                    "` must be given for dtype int8 only, got ", scale ? "one" : "None", " with ",
                    like_name, " ", fused::dtype_of(like), ". Pass both or neither. [op-dtype]");
  if (!is_needed) return;
  TORCH_CHECK_VALUE(scale->scalar_type() == at::kFloat, "npu.lightning_indexer: `", name,
                    "` must be float32, got ", fused::dtype_of(*scale),
                    ". Convert it with .to(). [op-dtype]");
  TORCH_CHECK_VALUE(scale->sym_sizes() == like.sym_sizes().slice(0, like.dim() - 1),
                    "npu.lightning_indexer: `", name, "` must have one number per row of `",
                    like_name, "`, got ", name, " ", fused::shape_of(*scale), ", ", like_name, " ",
                    fused::shape_of(like), ". Drop the last axis from its shape. [op-shape]");
}

void check_indexer(const Indexer& call) {
  check_addressing(call.addressing);
  const at::Tensor& query = call.addressing.query;
  const at::ScalarType factors = call.weights.scalar_type();
  TORCH_CHECK_VALUE(factors == at::kFloat || factors == at::kBFloat16 || factors == at::kHalf,
                    "npu.lightning_indexer: `weights` must be float32, float16 or bfloat16, got ",
                    fused::dtype_of(call.weights), ". Convert it with .to(). [op-dtype]");
  TORCH_CHECK_VALUE(
      call.weights.sym_sizes() == query.sym_sizes().slice(0, query.dim() - 1),
      "npu.lightning_indexer: `weights` must have one number per head of `query`, got "
      "weights ",
      fused::shape_of(call.weights), ", query ", fused::shape_of(query),
      ". Drop the last axis of the query's shape. [op-shape]");
  TORCH_CHECK_VALUE(query.scalar_type() != at::kChar || query.sym_size(-1) <= kMostInt8Width,
                    "npu.lightning_indexer: rows of int8 must have a width of at most ",
                    kMostInt8Width, ", got query ", fused::shape_of(query),
                    ". Pass float32, float16 or bfloat16. [op-shape]");
  check_scale("query_dequant_scale", call.query_scale, "query", query);
  check_scale("key_dequant_scale", call.key_scale, "key", call.addressing.key);
  TORCH_CHECK_VALUE(call.count >= 1,
                    "npu.lightning_indexer: `sparse_count` must be at least 1, got ", call.count,
                    ". Pass the number of positions to select. [op-value]");
}

// Integer codes that order like scores, NaN first as in torch.topk; on ties the earlier position is
// larger.
std::uint64_t code_of(float score, std::int64_t position) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 is 0
  const std::uint32_t order =
      score != score ? 0xFFFFFFFFU : bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFU : 0x80000000U);
  return std::uint64_t{order} << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(position));
}

std::int32_t position_of(std::uint64_t code) {
  return static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<std::uint32_t>(code));
}

// The positions of the `count` largest of more `scores`, ascending.
void select(const float* scores, std::int64_t size, std::int64_t count, std::int32_t* out) {
  const std::size_t capacity = std::max<std::int64_t>(2 * count, 4096);
  std::vector<std::uint64_t> candidates;
  candidates.reserve(capacity);
  std::uint64_t least = 0;
  const auto cut = [&] {
    std::nth_element(candidates.begin(), candidates.begin() + (count - 1), candidates.end(),
                     std::greater<>());
    candidates.resize(count);
    least = candidates.back();
  };
  for (std::int64_t i = 0; i < size; ++i) {
    const std::uint64_t code = code_of(scores[i], i);
    if (code <= least) continue;
    candidates.push_back(code);
    if (candidates.size() == capacity) cut();
  }
  cut();
  std::transform(candidates.begin(), candidates.end(), out, position_of);
  std::sort(out, out + count);
}

// Queries [first, first + count) of a sequence: as float32, or in 8 bits with their scales.
struct Tile {
  std::int64_t first, count;
  int heads, width;
  std::vector<float> weights;         // (count, heads)
  std::vector<float> queries{};       // (count, heads, width)
  std::vector<std::int16_t> pairs{};  // (count, heads, half the width rounded up, 2)
  std::vector<float> scales{};        // (count, heads)

  bool is_int8() const { return !pairs.empty(); }
  int pair_count() const { return (width + 1) / 2; }
};

struct Queries {
  at::Tensor query, weights;  // contiguous
  OptionalTensor scale;
};

Tile tile_of(const Queries& all, const Sequence& sequence, std::int64_t first, std::int64_t count) {
  const SparseKernels& kernels = sparse_kernels();
  const std::int64_t heads = all.query.size(-2), width = all.query.size(-1);
  const std::int64_t row = sequence.first_row + first;
  Tile tile{.first = first,
            .count = count,
            .heads = static_cast<int>(heads),
            .width = static_cast<int>(width),
            .weights = std::vector<float>(count * heads)};
  const auto* factors = static_cast<const char*>(all.weights.const_data_ptr());
  kernels.widen(factors + row * heads * all.weights.element_size(), element_of(all.weights),
                static_cast<int>(count * heads), tile.weights.data());
  if (all.scale) {
    const float* scales = all.scale->const_data_ptr<float>() + row * heads;
    tile.scales.assign(scales, scales + count * heads);
    tile.pairs.resize(count * heads * tile.pair_count() * 2);
    const std::int8_t* from = all.query.const_data_ptr<std::int8_t>() + row * heads * width;
    for (std::int64_t i = 0; i < count * heads; ++i)
      std::copy_n(from + i * width, width, tile.pairs.data() + i * tile.pair_count() * 2);
    return tile;
  }
  tile.queries.resize(count * heads * width);
  const auto* from = static_cast<const char*>(all.query.const_data_ptr());
  kernels.widen(from + row * heads * width * all.query.element_size(), element_of(all.query),
                static_cast<int>(count * heads * width), tile.queries.data());
  return tile;
}

// One thread's block of keys, packed as its tile's kernels read it.
class PackedKeys {
 public:
  PackedKeys(const Tile& tile, const KeyRows& rows, const std::optional<KeyRows>& scales,
             Element element)
      : tile_(tile), rows_(rows), scales_(scales), element_(element) {
    const std::size_t size = static_cast<std::size_t>(tile.width + 1) * kBlock;
    tile.is_int8() ? pairs_.resize(size) : floats_.resize(size);
  }

  void pack(std::int64_t start, int count) {
    const SparseKernels& kernels = sparse_kernels();
    for (int lane = 0; lane < count; ++lane) {
      const void* row = rows_.at(start + lane);
      if (!tile_.is_int8()) {
        kernels.pack_key(row, element_, tile_.width, lane, floats_.data());
        continue;
      }
      kernels.pack_pairs(static_cast<const std::int8_t*>(row), tile_.width, lane, pairs_.data());
      key_scales_[lane] = *static_cast<const float*>(scales_->at(start + lane));
    }
  }

  void score(std::int64_t query, float* out) const {
    const std::int64_t first = query * tile_.heads;
    if (tile_.is_int8()) {
      const Int8Heads heads{tile_.pairs.data() + first * tile_.pair_count() * 2,
                            tile_.scales.data() + first, tile_.weights.data() + first, tile_.heads,
                            tile_.pair_count()};
      sparse_kernels().index_scores_int8(heads, pairs_.data(), key_scales_, out);
    } else {
      sparse_kernels().index_scores(tile_.queries.data() + first * tile_.width,
                                    tile_.weights.data() + first, tile_.heads, tile_.width,
                                    floats_.data(), out);
    }
  }

 private:
  const Tile& tile_;
  const KeyRows& rows_;
  const std::optional<KeyRows>& scales_;
  Element element_;
  std::vector<float> floats_;
  std::vector<std::int16_t> pairs_;
  float key_scales_[kBlock] = {};
};

void score(const Tile& tile, const KeyRows& rows, const std::optional<KeyRows>& scales,
           Element element, std::int64_t keys, std::int64_t stride, float* scores) {
  const std::int64_t products = tile.count * tile.heads * tile.width * kBlock;
  at::parallel_for(0, (keys + kBlock - 1) / kBlock, 1 + kPieceProducts / products,
                   [&](std::int64_t begin, std::int64_t end) {
                     PackedKeys packed(tile, rows, scales, element);
                     for (std::int64_t block = begin; block < end; ++block) {
                       const std::int64_t start = block * kBlock;
                       packed.pack(start,
                                   static_cast<int>(std::min<std::int64_t>(kBlock, keys - start)));
                       for (std::int64_t i = 0; i < tile.count; ++i)
                         packed.score(i, scores + i * stride + start);
                     }
                   });
}

}  // namespace

at::Tensor lightning_indexer(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& weights, const OptionalTensor& query_lengths,
                             const OptionalTensor& key_lengths, const OptionalTensor& block_table,
                             std::string_view layout_query, std::string_view layout_key,
                             std::int64_t sparse_count, std::int64_t sparse_mode,
                             const OptionalTensor& query_scale, const OptionalTensor& key_scale) {
  const Indexer call{
      {kLightningIndexer, "key", "actual_seq_lengths_key", "layout_key", query, key, query_lengths,
       key_lengths, block_table, layout_query, layout_key, sparse_mode, true},
      weights,
      sparse_count,
      query_scale,
      key_scale};
  check_indexer(call);
  const Sequences sequences = sequences_of(call.addressing);
  c10::DimVector sizes(query.sizes().begin(), query.sizes().end() - 2);
  sizes.append({1, sparse_count});
  const at::Tensor indices = at::full(sizes, -1, query.options().dtype(at::kInt));
  auto* out = indices.mutable_data_ptr<std::int32_t>();
  const at::Tensor k = with_dense_rows(key);
  const Queries queries{query.contiguous(), weights.contiguous(),
                        query_scale ? OptionalTensor(query_scale->contiguous()) : std::nullopt};
  std::vector<float> scores;
  for (const Sequence& sequence : sequences.list) {
    const Layout layout = key_layout_of(call.addressing);
    const KeyRows rows(k, layout, sequences, sequence);
    std::optional<KeyRows> scales;
    if (key_scale) scales.emplace(*key_scale, layout, sequences, sequence);
    // Queries with at most as many visible keys as the selection take all, without reading keys.
    std::int64_t first = 0;
    for (; first < sequence.queries; ++first) {
      const std::int64_t visible = sequence.visible(first, sparse_mode);
      if (visible > sparse_count) break;
      std::int32_t* row = out + (sequence.first_row + first) * sparse_count;
      for (std::int64_t i = 0; i < visible; ++i)
        row[i] = static_cast<std::int32_t>(i);
    }
    const std::int64_t stride = (sequence.keys + kBlock - 1) / kBlock * kBlock;
    const std::int64_t most =
        std::clamp<std::int64_t>(kMostScores / std::max<std::int64_t>(stride, 1), 1, kMostQueries);
    for (; first < sequence.queries; first += most) {
      const std::int64_t count = std::min(most, sequence.queries - first);
      const Tile tile = tile_of(queries, sequence, first, count);
      scores.resize(count * stride);
      score(tile, rows, scales, element_of(k), sequence.visible(first + count - 1, sparse_mode),
            stride, scores.data());
      at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          select(scores.data() + i * stride, sequence.visible(first + i, sparse_mode), sparse_count,
                 out + (sequence.first_row + first + i) * sparse_count);
      });
    }
  }
  return indices;
}

at::Tensor lightning_indexer_fake(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& weights, const OptionalTensor& query_lengths,
                                  const OptionalTensor& key_lengths,
                                  const OptionalTensor& block_table, std::string_view layout_query,
                                  std::string_view layout_key, std::int64_t sparse_count,
                                  std::int64_t sparse_mode, const OptionalTensor& query_scale,
                                  const OptionalTensor& key_scale) {
  check_indexer(
      {{kLightningIndexer, "key", "actual_seq_lengths_key", "layout_key", query, key, query_lengths,
        key_lengths, block_table, layout_query, layout_key, sparse_mode, true},
       weights,
       sparse_count,
       query_scale,
       key_scale});
  c10::SymDimVector sizes(query.sym_sizes().begin(), query.sym_sizes().end() - 2);
  sizes.append({c10::SymInt(1), c10::SymInt(sparse_count)});
  return at::empty_symint(sizes, query.options().dtype(at::kInt));
}

}  // namespace npu::ops::sparse_attention
