// Row operations of a program other than products with weights: one table of functions per
// instruction set. A row's result does not depend on the number of rows or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernel_programs/activation.h"

namespace npu::ops::kernel_programs {

inline constexpr int kBlockSlots = 16;  // slots of a sequence in one block of the cache
inline constexpr int kPieceSlots = 64;  // slots whose scores share a maximum
inline constexpr int kMostHeadSize = 1024;

enum class CacheKind { float32, bfloat16, u8 };

struct NormOptions {
  bool is_rms;
  float eps;
  const float* weight;  // (width / parts,) or null
  const float* bias;    // likewise
  int parts;
};

// Layout of a layer's keys and values in a block.
//
// For each key head: keys (key_size, 16 slots), values (16 slots, value_size rounded up to 16).
// An 8-bit element means scale * u + least; the scale and least of each slot's key and of each
// slot's value follow: 4 times 16 float32. With bounds, the minimum and maximum of each channel of
// each head's keys follow the last head: 2 times key_size rounded up to 16 bfloat16. They are valid
// if all 16 slots are written.
struct LayerCache {
  CacheKind kind;
  int key_heads, key_size, value_size;
  std::size_t offset;  // bytes from the block's start
  bool has_bounds = false;

  int padded_key_size() const { return (key_size + 15) / 16 * 16; }
  int padded_value_size() const { return (value_size + 15) / 16 * 16; }
  std::size_t element_bytes() const {
    return kind == CacheKind::float32 ? 4 : kind == CacheKind::bfloat16 ? 2 : 1;
  }
  std::size_t head_bytes() const {
    const std::size_t elements = std::size_t(kBlockSlots) * (key_size + padded_value_size());
    return elements * element_bytes() +
           (kind == CacheKind::u8 ? 4 * kBlockSlots * sizeof(float) : 0);
  }
  std::size_t bounds_bytes() const { return 2 * sizeof(std::uint16_t) * padded_key_size(); }
  std::size_t bounds_offset(int key_head) const {  // from the block's start
    return offset + key_heads * head_bytes() + key_head * bounds_bytes();
  }
  std::size_t bytes() const {
    return key_heads * (head_bytes() + (has_bounds ? bounds_bytes() : 0));
  }
};

struct AttendOptions {
  float scale;
  std::int64_t window;  // visible slots of a row; 0 for all
  float soft_cap;       // 0 for none
  const float* sinks;   // (heads,) or null
  const float* slopes;  // (heads,) or null
};

// Queries that read the same keys: `rows` rows of one sequence, `group` heads each.
struct Queries {
  const float* values;  // the first row's first head
  std::size_t row_stride;
  int rows, group, first_head;
  std::int64_t first_slot;  // of the first row; the others follow
};

// One piece of attention: for each query the maximum score, the sum of exponentials, and the
// weighted sum of values, (rows * group,) and (rows * group, padded value size).
struct PartialSums {
  float* largest;
  float* sums;
  float* values;
};

inline constexpr std::int64_t kWeighedPart = 256;

struct RowKernels {
  const char* name;
  // One row each.
  void (*norm)(const float* x, int width, const NormOptions& options, float* out);
  void (*rotate)(float* x, int heads, int size, const float* own, const float* other,
                 const std::int32_t* partner);
  void (*combine)(float* out, const float* left, const float* right, bool multiplies,
                  Activation activation, float factor, int width);
  void (*append)(const LayerCache& cache, unsigned char* block, int slot, const float* keys,
                 const float* values);
  // Writes the bounds of a full block, for a layer with bounds.
  void (*note_bounds)(const LayerCache& cache, unsigned char* block);
  // Upper bounds of the scores of queries (count, key size rounded up to 16), zero-padded, with the
  // block's keys; infinite if keys or query have NaN.
  void (*bound)(const LayerCache& cache, int key_head, const unsigned char* block,
                const float* queries, int count, float* out, std::size_t stride);
  // Writes queries in `attend`'s layout to the first part of `scratch`, of attend_scratch floats.
  void (*ready)(const LayerCache& cache, const Queries& queries, const AttendOptions& options,
                float* scratch);
  // Attention to the slots [piece_start, piece_end), at most kPieceSlots from a multiple of it, in
  // the given blocks; the queries in `scratch` are not changed.
  void (*attend)(const LayerCache& cache, int key_head, unsigned char* const* blocks,
                 std::int64_t piece_start, std::int64_t piece_end, const Queries& queries,
                 const AttendOptions& options, const PartialSums& out, float* scratch);
  // Adds a later piece to the sums of earlier ones; their magnitudes may differ widely.
  void (*merge)(const PartialSums& total, const PartialSums& piece, int queries,
                int padded_value_size);
  // Divides by the sums, with a sink's exponential if there are any, and writes rows out.
  void (*finish)(const PartialSums& total, const LayerCache& cache, const Queries& queries,
                 const AttendOptions& options, float* out, std::size_t out_stride);
  // Row argmax; ties go to the first index, and NaN is the largest, as in torch.
  std::int64_t (*argmax)(const float* x, std::int64_t width);
  // e^((score - largest score) / temperature) of each score of a row, and the sum and the maximum
  // of each kWeighedPart of them. If a score is NaN or +infinity, or all are -infinity, sums are
  // NaN.
  void (*weigh)(const float* scores, std::int64_t width, float temperature, float* weights,
                double* sums, float* most_of_parts);
};

// Number of floats that `attend` needs.
inline std::size_t attend_scratch(int queries, int key_size) {
  return std::size_t(queries) * (key_size + kPieceSlots);
}

// The named set's kernels, or by default the best that this processor supports; null if
// unsupported.
const RowKernels* row_kernels(const char* name);

// The sets that this processor supports, the best first.
std::vector<std::string> kernel_sets();

}  // namespace npu::ops::kernel_programs
