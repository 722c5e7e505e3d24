// Inner loops of sparse attention, independent of torch: one table of functions per instruction
// set.
//
// Rows of a cache are packed sixteen positions at a time, channel by channel, so that a broadcast
// channel of a query gives sixteen products without horizontal sums. A head's sums run over the
// channels in order, whatever other heads are computed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu::ops::sparse_attention {

inline constexpr int kBlock = 16;     // positions packed together
inline constexpr int kMostRows = 32;  // positions whose scores share a maximum

enum class Element { kFloat32, kBfloat16, kFloat16 };

inline constexpr int rounded_up(int count) {
  return (count + kBlock - 1) / kBlock * kBlock;
}

// Queries of one token, and their sums between pieces of the selection.
struct HeadGroup {
  const float* queries;  // (heads, width)
  int heads, width, value_width;
  float scale;
  float* largest;  // (heads,)
  float* sums;     // (heads,)
  float* values;   // (heads, value_width rounded up)
};

// Queries of one token in 8 bits, with channels in pairs; an odd width is padded with zero.
struct Int8Heads {
  const std::int16_t* queries;
  const float* scales;   // (heads,)
  const float* weights;  // (heads,)
  int heads, pairs;
};

struct SparseKernels {
  const char* name;
  // Row `from` into lane `lane` of a block at `to` (width, kBlock).
  void (*pack_key)(const void* from, Element element, int width, int lane, float* to);
  // Row `from` as row `row` of values packed by kBlock channels, (width / kBlock, kMostRows,
  // kBlock).
  void (*pack_value)(const void* from, Element element, int width, int row, float* to);
  void (*widen)(const void* from, Element element, int width, float* to);
  void (*narrow)(const float* from, int width, Element element, void* to);
  // out[j] = sum over h of weights[h] * relu(queries[h] . keys[:, j]) for the kBlock keys.
  void (*index_scores)(const float* queries, const float* weights, int heads, int width,
                       const float* keys, float* out);
  // Row `from` into lane `lane` of a block at `to` (pairs, kBlock, 2): adjacent channels, so that
  // one instruction multiplies and adds both.
  void (*pack_pairs)(const std::int8_t* from, int width, int lane, std::int16_t* to);
  // out[j] = sum over h of weights[h] * relu((queries[h] . keys[:, j]) * query_scales[h] *
  // key_scales[j]); the products are exact. queries: (heads, pairs, 2).
  void (*index_scores_int8)(const Int8Heads& heads, const std::int16_t* keys,
                            const float* key_scales, float* out);
  // Adds `rows` packed positions to a group's sums. scratch: (heads, kMostRows).
  void (*attend)(const HeadGroup& group, const float* keys, const float* values, int rows,
                 float* scratch);
  // Writes each head's values divided by its sum, (heads, value_width) contiguous.
  void (*finish)(const HeadGroup& group, Element element, void* out);
};

// The best set of kernels that this processor supports.
const SparseKernels& sparse_kernels();

}  // namespace npu::ops::sparse_attention
