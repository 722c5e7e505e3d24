// Programs of our own kernels: instructions over rows, run by the thread pool.
//
// npu_ops.kernel_programs.program documents each instruction.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "kernel_programs/linear.h"
#include "kernel_programs/packed_linear.h"
#include "kernel_programs/row_kernels.h"
#include "kernel_programs/thread_pool.h"

namespace npu::ops::kernel_programs {

// Columns of a buffer.
struct View {
  int buffer = -1;
  int start = 0;
  int width = 0;
};

struct Embed {
  View out;
  PackedLinear table;
  bool by_position;
  float scale;
};

struct Norm {
  View input, out;
  NormOptions options;
};

struct Linear {
  View input, out;
  PackedLinear weight;
  const float* bias;
  bool has_norm;
  NormOptions norm;
  Activation activation;
  bool is_gated;
  View residual;  // buffer -1: none
  float factor, soft_cap;
};

struct Rotate {
  View values;
  int heads;
  const float *own, *other;
  const std::int32_t* partner;
};

struct Append {
  View keys, values;
  int layer;
};

struct Attend {
  View queries, out;
  int layer, heads;
  AttendOptions options;
};

struct Combine {
  View out, left, right;  // right.buffer -1: none, or `vector`
  const float* vector;
  bool multiplies;
  Activation activation;
  float factor;
};

struct Keep {
  View input, out;
};

// Input rows from the caller in addition to the tokens.
struct Load {
  View out;
  int argument;
};

// Output rows for the caller.
struct Store {
  View input;
  int result;
};

enum class Shares { softmax, softmax_of_chosen, sigmoid };

struct Experts {
  View input, scores, out, residual;  // residual.buffer -1: none
  std::vector<PackedLinear> gate_up, down;
  std::vector<const float*> gate_up_bias, down_bias;  // empty: none
  int chosen;
  Shares shares;
  Activation activation;
  float limit;  // 0: none
};

using Instruction =
    std::variant<Embed, Norm, Linear, Rotate, Append, Attend, Combine, Keep, Experts, Load, Store>;

// Inputs of a step; see npu_ops.kernel_programs.program.Rows. All indices are validated.
struct Rows {
  int count = 0;
  const std::int64_t *tokens = nullptr, *positions = nullptr;
  const std::int32_t *sequences = nullptr, *slots = nullptr;
  const std::int32_t* block_tables = nullptr;
  int table_width = 0;
  bool is_decode = false;  // each sequence has one row
  int kept_count = 0;
  const std::int64_t* kept = nullptr;
  std::shared_ptr<const std::vector<unsigned char*>> blocks;  // by id; owned by the program
  const float* const* arguments = nullptr;                    // of Load: rows without gaps
  float* const* results = nullptr;                            // of Store

  // The blocks of a row's sequence.
  const std::int32_t* table_of(int row) const {
    return block_tables + static_cast<std::size_t>(sequences[row]) * table_width;
  }
};

// Rows of a decode that attend only to some blocks of keys; see block_selection.cpp.
struct BlockSelection {
  int blocks = 0;          // 0: all
  std::int64_t after = 0;  // maximum slots of a dense sequence
};

inline constexpr int kFewestBlocks = 4;  // the first, the two newest, and one to select

inline constexpr int kAlone = 0;  // number of workers: the caller's thread, without the thread pool

struct QuantizedInput;  // rows of a linear's input

// Accumulates the nanoseconds of a step; null if not requested.
struct StepTimes {
  std::int64_t* stages = nullptr;   // of each stage
  std::int64_t* workers = nullptr;  // work of each worker: (workers, stages)
};

class Program {
 public:
  Program(std::vector<Instruction> instructions, const std::vector<int>& widths,
          std::vector<LayerCache> layers, View logits, const LinearKernels& linear,
          const RowKernels& row, BlockSelection selection);
  ~Program();

  // Runs a step and writes (kept rows, width of the logits' buffer) to `logits`, which is null for
  // a program without logits. Calls are queued. Afterwards only weights and blocks are still read.
  // Throws std::bad_alloc if memory runs out; a later call may succeed.
  void run(const Rows& rows, float* logits, int workers, const StepTimes& times);

  // The first and last instruction of each stage.
  const std::vector<std::pair<int, int>>& stages() const { return stages_; }

 private:
  struct Tile;     // rows of a sequence that attend together
  struct Context;  // memory of all steps
  struct Step;     // one step as a job of the thread pool
  struct Phase;    // a stage of that job
  struct Attention;

  void make_stages();
  void find_needs();
  void plan(Step& step, int workers) const;
  void reserve(Step& step, int workers);
  void make_tiles(Step& step) const;
  int rows_of(const Step& step, int stage) const;
  float* at(const Step& step, const View& view, std::size_t row) const;

  // Result of a phase's piece: final, or left with the worker.
  void compute(Step& step, const Phase& phase, int piece, int end_piece, int worker) const;
  void run_by_row(const Step& step, int first, int last, int begin, int end) const;
  void run_row(const Step& step, const Instruction& instruction, int row) const;
  void run_pass(Step& step, const Phase& phase, int begin, int end, int worker) const;
  void prepare_rows(const Step& step, const Linear& linear, int begin, int end, int first_row,
                    QuantizedInput& prepared, float* normed_row) const;
  void multiply_rows(const Step& step, const Linear& linear, int first_row, int rows,
                     const QuantizedInput& prepared, int first_block, int last_block, float* out,
                     std::size_t out_stride) const;
  void multiply(const Step& step, const Phase& phase, int begin, int end, int worker) const;

  void plan_attention(Step& step, int stage, int workers) const;
  Attention attention(const Step& step, const Phase& phase, int worker) const;
  void note_bounds(const Step& step, const Phase& phase, int begin, int end) const;
  void bound_candidates(const Step& step, const Phase& phase, int piece, int worker) const;
  void choose_blocks(const Step& step, const Phase& phase, int pair, int worker) const;
  void attend_heads(const Step& step, const Phase& phase, int pair, int worker) const;
  void attend_pieces(const Step& step, const Phase& phase, int piece, int worker) const;
  void merge_pieces(const Step& step, const Phase& phase, int pair, int worker) const;

  void plan_experts(Step& step, int stage, int rows, int workers) const;
  void choose_experts(Step& step, const Phase& phase, int begin, int end, int worker) const;
  void group_rows(Step& step, const Phase& phase) const;
  void prepare_entries(const Step& step, const Phase& phase, int begin, int end) const;
  void multiply_up(const Step& step, const Phase& phase, int begin, int end, int worker) const;
  void multiply_down(const Step& step, const Phase& phase, int begin, int end, int worker) const;

  std::vector<Instruction> instructions_;
  std::vector<std::pair<int, int>> stages_;
  std::vector<int> ends_of_rows_alone_;  // by stage: where rows next depend on others, or are fewer
  int first_kept_stage_ = 0;
  std::vector<int> strides_;
  std::vector<LayerCache> layers_;
  View logits_;
  const LinearKernels& linear_;
  const RowKernels& row_;
  const BlockSelection selection_;
  std::mutex mutex_;
  std::unique_ptr<Context> context_;
  // Alternating: a worker that lost its core may still read the previous step.
  std::array<std::unique_ptr<Step>, 2> steps_;
  std::uint64_t step_count_ = 0;
};

}  // namespace npu::ops::kernel_programs
