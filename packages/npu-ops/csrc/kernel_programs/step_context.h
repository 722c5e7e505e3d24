// State that the workers of the thread pool share while they run a step of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "kernel_programs/program.h"

namespace npu::ops::kernel_programs {

inline constexpr std::size_t kAlignment = 64;

// Memory that only grows, and is not cleared.
template <typename T>
class Scratch {
 public:
  T* of(std::size_t count) {
    if (count > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(
          static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(kAlignment))));
      size_ = count;
    }
    return memory_.get();
  }
  T* get() const { return memory_.get(); }

 private:
  struct AlignedDelete {
    void operator()(T* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<T, AlignedDelete> memory_;
  std::size_t size_ = 0;
};

inline std::size_t rounded(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

// A worker's share of a number of things.
inline std::pair<int, int> share(int count, int worker, int workers) {
  return {static_cast<int>(static_cast<std::int64_t>(count) * worker / workers),
          static_cast<int>(static_cast<std::int64_t>(count) * (worker + 1) / workers)};
}

inline constexpr int kQueriesOfTile = 48;  // as many read the same keys together

inline int rows_of_tile(int group) {
  return std::max(1, kQueriesOfTile / group);
}

// Of the sums of a piece of attention.
inline std::size_t partial_floats(int queries, int padded) {
  return static_cast<std::size_t>(queries) * (padded + 2);
}

// Rows of a linear's input, as its kernel takes them.
struct QuantizedInput {
  Scratch<std::int8_t> integers;
  Scratch<float> scales, values;
  Scratch<float> sums;

  void reserve(std::size_t rows, std::size_t inputs) {
    const std::size_t padded = rounded(inputs, 64);
    integers.of(rows * padded);
    scales.of(rows * (padded / 64));
    sums.of(rows * (padded / 64) * kSumsOfSlab);
    values.of(rows * rounded(inputs, 16));
  }
};

// What the instructions of a program need at most.
struct ScratchSizes {
  std::size_t inputs = 0;                             // of a linear
  std::size_t attend = 0, sums = 0;                   // floats of a worker
  std::size_t chosen = 0;                             // experts of a row
  std::size_t expert_inputs = 0, expert_inner = 0;    // inputs of their linears
  std::size_t expert_values = 0, expert_results = 0;  // floats of an entry
  std::size_t bound_queries = 0;                      // floats of a worker
  int heads = 0, key_heads = 0;                       // of an Attend
  std::vector<int> groups;                            // heads that share keys, in an Attend
};

// What one worker needs for itself.
struct ThreadScratch {
  QuantizedInput prepared;
  Scratch<float> row, attend, sums, expert, bound_queries, ranks;
};

// The prepared rows from `row` on.
inline Activations activations(const QuantizedInput& prepared, int inputs, std::size_t row) {
  const std::size_t padded = rounded(inputs, 64), stride = rounded(inputs, 16);
  return {.values = prepared.values.get() + row * stride,
          .stride = stride,
          .integers = prepared.integers.get() + row * padded,
          .scales = prepared.scales.get() + row * (padded / 64),
          .sums = prepared.sums.get() + row * (padded / 64) * kSumsOfSlab};
}

// Makes a row of a linear's input ready: integers where its weight has them, else a copy.
inline void prepare(const LinearKernels& kernels, const PackedLinear& weight, const float* x,
                    QuantizedInput& prepared, std::size_t row) {
  const int inputs = weight.inputs;
  const std::size_t padded = rounded(inputs, 64);
  if (weight.has_integers()) {
    kernels.quantize(x, inputs, prepared.integers.get() + row * padded,
                     prepared.scales.get() + row * (padded / 64),
                     prepared.sums.get() + row * (padded / 64) * kSumsOfSlab);
  } else {
    std::copy(x, x + inputs, prepared.values.get() + row * rounded(inputs, 16));
  }
}

struct Program::Tile {
  int first_row, rows;
  std::int64_t first_slot;
  const std::int32_t* blocks;  // the sequence's table, or that of the blocks which it chooses
  // Of a row that chooses blocks, which then look like a shorter sequence; see block_selection.cpp.
  int blocks_of_head = 0;                    // how far the key heads' tables lie apart
  const std::int32_t* all_blocks = nullptr;  // the sequence's table; null for a row that does not
  int newest = 0;                            // its last block

  const std::int32_t* blocks_of(int key_head) const { return blocks + key_head * blocks_of_head; }
};

struct Program::Context {
  ScratchSizes needs;
  Rows rows;
  std::vector<Scratch<float>> buffers;
  std::vector<float*> bases;  // of the buffers; the logits' are the caller's memory
  std::vector<ThreadScratch> own;
  QuantizedInput shared;
  QuantizedInput expert_inputs, expert_inner;
  Scratch<float> expert_values;
  Scratch<float> pieces;
  Scratch<float> bounds;                // of candidates' scores: (tiles, heads, most candidates)
  Scratch<std::int32_t> chosen_blocks;  // (tiles, key heads, blocks)
  bool has_selections = false;          // whether a row chooses blocks
  std::vector<std::atomic<int>> counters;
  std::map<int, std::vector<Tile>> tiles;                  // by the heads that share keys
  std::vector<std::vector<std::pair<int, float>>> chosen;  // of each row: expert and share
  std::int64_t* times_ns = nullptr;
  std::chrono::steady_clock::time_point last_time;
  bool are_rows_split = false;  // whether workers have rows of their own, see Program::run_rows

  explicit Context(std::size_t stages) : counters(stages) {}
};

}  // namespace npu::ops::kernel_programs
