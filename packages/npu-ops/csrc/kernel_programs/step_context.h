// A step of a program as a job of the thread pool: its phases, and the memory that workers share.
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
  std::size_t size() const { return size_; }

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

// A worker's share of the work.
inline std::pair<int, int> share(int count, int worker, int workers) {
  return {static_cast<int>(static_cast<std::int64_t>(count) * worker / workers),
          static_cast<int>(static_cast<std::int64_t>(count) * (worker + 1) / workers)};
}

inline constexpr int kTasksPerWorker =
    3;  // of pieces without much difference, so that workers end together
inline constexpr std::size_t kResultsOfPiece = 64 << 10;  // floats, which stay in a near cache

inline constexpr int kNewestBlocks = 2;  // always selected, like the first; see block_selection.cpp

inline constexpr int kQueriesOfTile = 48;  // number that reads the same keys together

inline int rows_of_tile(int group) {
  return std::max(1, kQueriesOfTile / group);
}

// Of the sums of a piece of attention.
inline std::size_t partial_floats(int queries, int padded) {
  return static_cast<std::size_t>(queries) * (padded + 2);
}

// Rows of a linear's input, in its kernel's format.
struct QuantizedInput {
  Scratch<std::int8_t> integers;
  Scratch<float> scales, values;
  Scratch<float> sums;

  // Calls `need(memory, elements)` for each part that so many rows need.
  template <typename Need>
  void for_rows(std::size_t rows, std::size_t inputs, const Need& need) {
    const std::size_t padded = rounded(inputs, 64);
    need(integers, rows * padded);
    need(scales, rows * (padded / 64));
    need(sums, rows * (padded / 64) * kSumsOfSlab);
    need(values, rows * rounded(inputs, 16));
  }
};

// The maximum needs of a program's instructions.
struct ScratchSizes {
  std::size_t inputs = 0;                           // of a linear
  std::size_t attend = 0, sums = 0;                 // floats of a worker
  std::size_t chosen = 0, experts = 0;              // of a row, and of all
  std::size_t expert_inputs = 0, expert_inner = 0;  // inputs of their linears
  std::size_t expert_values = 0;                    // floats of an entry
  std::size_t bound_queries = 0;                    // floats of a worker
  int heads = 0, key_heads = 0;                     // of an Attend
  std::vector<int> groups;                          // heads that share keys, in an Attend
};

// Rows computed by a worker, and their destination.
struct Result {
  float* to = nullptr;
  std::size_t to_stride = 0, stride = 0;
  int rows = 0, width = 0;
  int first = 0, unit = 0;  // of adjacent pieces: index of the first, floats per piece
};

// Memory of one worker.
struct ThreadScratch {
  QuantizedInput prepared;
  std::uint64_t prepared_for = 0;  // Step::key of the phase whose input it has
  Scratch<float> row, attend, sums, expert, bound_queries, ranks, results;
  Scratch<int> order;           // of experts
  Result result;                // of the piece, in `results`
  std::int64_t compute_ns = 0;  // time taken, if requested
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

// Prepares a row of a linear's input: quantized for integer weights, otherwise a copy.
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
  const std::int32_t* blocks;  // the sequence's table, or that of the selected blocks
  // Of a row with selected blocks, which form a shorter sequence; see block_selection.cpp.
  int blocks_of_head = 0;                    // stride of the key heads' tables
  const std::int32_t* all_blocks = nullptr;  // the sequence's table; null for a dense row
  int newest = 0;                            // its last block

  const std::int32_t* blocks_of(int key_head) const { return blocks + key_head * blocks_of_head; }
  std::int64_t first_piece(std::int64_t window) const {
    return window > 0 ? std::max<std::int64_t>(0, first_slot - window + 1) / kPieceSlots : 0;
  }
  std::int64_t last_piece() const { return (first_slot + rows - 1) / kPieceSlots; }
};

struct Program::Context {
  ScratchSizes needs;
  std::vector<Scratch<float>> buffers;
  std::vector<ThreadScratch> own;
  QuantizedInput shared;
  QuantizedInput expert_inputs, expert_inner;
  Scratch<float> expert_values;
  Scratch<float> pieces;
  Scratch<float> bounds;  // of candidates' scores: (tiles, heads, most candidates)
};

struct Program::Phase {
  enum class Kind {
    rows,        // instructions of a stage, by row
    passes,      // several stages, for a pass of independent rows
    prepare,     // a linear's input
    product,     // a linear
    bounds,      // of newly full blocks of keys
    candidates,  // bounds of scores with blocks of keys
    blocks,      // the selection among them
    heads,       // attention of a tile's heads that share keys
    pieces,      // pieces of that
    merge,       // of pieces
    choose,      // experts of rows
    group,       // rows by their experts
    expert_inputs,
    expert_up,
    expert_inner,
    expert_down,
  };
  Kind kind;
  int stage, end_stage;  // of the program
  int count;             // of data shared among the pieces
  int pieces;
  int most_pieces = 0;  // of attention, for a tile
  int together = 1;     // of these, in one

  // The range of `count` of the pieces [first, end).
  std::pair<int, int> range(int first, int end) const {
    return {share(count, first, pieces).first, share(count, end - 1, pieces).second};
  }
};

// Rows by expert.
struct ExpertGroups {
  struct Entry {
    int index;
    float part;  // weight of the expert's result
  };
  std::vector<Entry> chosen;   // (rows, experts of a row): experts
  std::vector<Entry> entries;  // by expert: rows
  std::vector<int> first;      // (experts + 1,): an expert's first entry
};

struct Program::Step final : Job {
  Step(const Program& program, Context& context)
      : program(program),
        context(context),
        bases(context.buffers.size()),
        pass_ns(std::make_unique<std::atomic<std::int64_t>[]>(program.stages().size())) {}

  void compute(int phase, int first, int end, int worker) noexcept override;
  void commit(int phase, int first, int end, int worker) noexcept override;
  void end_stage(int phase) noexcept override;

  void add(const Phase& phase, bool is_repeatable, int most_together = 1);
  // Of a phase, among those of all steps.
  std::uint64_t key(const Phase& phase) const { return (number << 32) + (&phase - phases.data()); }

  const Program& program;
  Context& context;
  std::uint64_t number = 0;  // of the step, from 1
  std::vector<Phase> phases;
  Rows rows;
  std::vector<std::int32_t> block_tables;
  std::vector<float*> bases;               // of the buffers; the logits are the caller's memory
  std::map<int, std::vector<Tile>> tiles;  // by the heads that share keys
  bool has_selections = false;             // whether a row chooses blocks
  Scratch<std::int32_t> chosen_blocks;     // (tiles, key heads, blocks)
  std::size_t most_candidates = 0;
  std::vector<ExpertGroups> groups;                                    // by stage
  std::size_t result_floats = 0, piece_floats = 0, expert_floats = 0;  // that the phases need
  bool are_rows_split = false;  // whether passes have separate rows, see Program::run_pass
  void add_work(int stage, int worker, std::int64_t ns) const;

  StepTimes times;
  std::chrono::steady_clock::time_point began;
  std::atomic<std::int64_t> end_ns{0};                   // of the last piece so far, from then on
  std::int64_t last_end_ns = 0;                          // of the phase before
  std::unique_ptr<std::atomic<std::int64_t>[]> pass_ns;  // by stage, of all workers
};

}  // namespace npu::ops::kernel_programs
