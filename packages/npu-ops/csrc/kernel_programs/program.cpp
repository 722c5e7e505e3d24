#include "kernel_programs/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRowsAlone = 2;    // so few rows each worker prepares for itself: dearer is a barrier
constexpr int kRowsOfPass = 96;  // whose values stay in a worker's own cache from stage to stage
constexpr int kRowsOfMember = 32;  // fewer would be too few for the weights that each worker reads

bool is_linear(const Instruction& one) {
  return std::holds_alternative<Linear>(one);
}

// Whether a linear's kernel reads its input where it is.
bool takes_values(const Linear& linear) {
  return !linear.weight.has_integers() && !linear.has_norm;
}

// Whether rows need those of others.
bool is_mixing(const Instruction& one) {
  return std::holds_alternative<Attend>(one) || std::holds_alternative<Experts>(one);
}

}  // namespace

Program::Program(std::vector<Instruction> instructions, const std::vector<int>& widths,
                 std::vector<LayerCache> layers, View logits, const LinearKernels& linear,
                 const RowKernels& row, BlockSelection selection)
    : instructions_(std::move(instructions)),
      layers_(std::move(layers)),
      logits_(logits),
      linear_(linear),
      row_(row),
      selection_(selection) {
  for (int width : widths)
    strides_.push_back(static_cast<int>(rounded(width, 16)));
  if (logits_.buffer >= 0) strides_[logits_.buffer] = widths[logits_.buffer];
  make_stages();
  context_ = std::make_unique<Context>(stages_.size());
  context_->buffers.resize(widths.size());
  context_->bases.resize(widths.size());
  find_needs();
}

Program::~Program() = default;

// Neighbours that treat rows by themselves make one stage: nobody waits between them.
void Program::make_stages() {
  bool was_by_row = false;
  first_kept_stage_ = static_cast<int>(instructions_.size());
  for (int i = 0; i < static_cast<int>(instructions_.size()); ++i) {
    const Instruction& one = instructions_[i];
    const bool is_by_row = !is_linear(one) && !is_mixing(one);
    const bool begins = std::holds_alternative<Keep>(one);  // reads what other workers wrote
    if (is_by_row && was_by_row && !begins) {
      stages_.back().second = i;
    } else {
      stages_.emplace_back(i, i);
    }
    was_by_row = is_by_row;
    if (begins)
      first_kept_stage_ = std::min(first_kept_stage_, static_cast<int>(stages_.size()) - 1);
  }
  const int count = static_cast<int>(stages_.size());
  ends_of_rows_alone_.assign(count, 0);
  for (int stage = count - 1, end = count; stage >= 0; --stage) {
    const bool is_alone =
        stage < first_kept_stage_ && !is_mixing(instructions_[stages_[stage].first]);
    if (!is_alone) end = stage;
    ends_of_rows_alone_[stage] = std::max(end, stage);
  }
}

float* Program::at(const Context& step, const View& view, std::size_t row) const {
  return step.bases[view.buffer] + row * strides_[view.buffer] + view.start;
}

void Program::find_needs() {
  ScratchSizes& needs = context_->needs;
  const auto raise = [](std::size_t& most, std::size_t value) { most = std::max(most, value); };
  for (const Instruction& one : instructions_) {
    if (const auto* linear = std::get_if<Linear>(&one)) {
      raise(needs.inputs, linear->weight.inputs);
    } else if (const auto* attend = std::get_if<Attend>(&one)) {
      const LayerCache& cache = layers_[attend->layer];
      const int group = attend->heads / cache.key_heads, queries = rows_of_tile(group) * group;
      raise(needs.attend, attend_scratch(queries, cache.key_size));
      raise(needs.sums, 2 * partial_floats(queries, cache.padded_value_size()));
      raise(needs.bound_queries, static_cast<std::size_t>(attend->heads) * cache.padded_key_size());
      needs.heads = std::max(needs.heads, attend->heads);
      needs.key_heads = std::max(needs.key_heads, cache.key_heads);
      if (std::ranges::find(needs.groups, group) == needs.groups.end()) {
        needs.groups.push_back(group);
      }
    } else if (const auto* experts = std::get_if<Experts>(&one)) {
      const PackedLinear &up = experts->gate_up.front(), &down = experts->down.front();
      raise(needs.chosen, experts->chosen);
      raise(needs.expert_inputs, up.inputs);
      raise(needs.expert_inner, down.inputs);
      raise(needs.expert_values, rounded(up.outputs, 16));
      raise(needs.expert_results, rounded(down.outputs, 16));
    }
  }
}

void Program::reserve(Context& step, int workers) const {
  const ScratchSizes& needs = step.needs;
  const std::size_t rows = step.rows.count, entries = rows * needs.chosen;
  if (static_cast<int>(step.own.size()) < workers) step.own.resize(workers);
  for (ThreadScratch& own : step.own) {
    own.prepared.reserve(step.are_rows_split ? kRowsOfPass : kRowsAlone, needs.inputs);
    own.row.of(rounded(needs.inputs, 16));
    own.attend.of(needs.attend);
    own.sums.of(needs.sums);
    own.expert.of(rows * needs.expert_results);
    if (selection_.blocks > 0) own.bound_queries.of(needs.bound_queries);
  }
  const std::size_t together = step.are_rows_split ? step.rows.kept_count : rows;
  if (together > kRowsAlone) step.shared.reserve(together, needs.inputs);
  step.expert_inputs.reserve(entries, needs.expert_inputs);
  step.expert_inner.reserve(entries, needs.expert_inner);
  step.expert_values.of(entries * needs.expert_values);
  if (entries > 0) step.chosen.resize(std::max(step.chosen.size(), rows));
}

void Program::run(const Rows& rows, float* logits, int workers, std::int64_t* times_ns) {
  const std::lock_guard lock(mutex_);
  Context& step = *context_;
  step.rows = rows;
  step.times_ns = times_ns;
  for (std::size_t i = 0; i < strides_.size(); ++i) {
    const std::size_t count = static_cast<std::size_t>(rows.count) * strides_[i];
    step.bases[i] = static_cast<int>(i) == logits_.buffer ? logits : step.buffers[i].of(count);
  }
  step.are_rows_split = rows.count >= kRowsOfMember * std::max(workers, 1);
  reserve(step, std::max(workers, 1));
  make_tiles(step);
  for (auto& counter : step.counters)
    counter.store(0, std::memory_order_relaxed);
  step.last_time = Clock::now();
  const auto work = [&](Barrier& barrier, int worker) {
    for (int stage = 0; stage < static_cast<int>(stages_.size()); ++stage) {
      if (stage == first_kept_stage_ && rows.kept_count == 0) break;  // nobody asked for logits
      const int end = step.are_rows_split ? ends_of_rows_alone_[stage] : stage;
      if (end > stage) {
        run_rows(step, stage, end, barrier, worker);
        stage = end - 1;
      } else {
        run_stage(step, stage, barrier, worker);
      }
      barrier.wait();
      if (worker == 0) note_time(step, stage);
    }
  };
  if (workers == kAlone) {
    run_alone(work);
  } else {
    run_on_workers(workers, work);
  }
}

void Program::note_time(Context& step, int stage) const {
  if (step.times_ns == nullptr) return;
  const auto now = Clock::now();
  step.times_ns[stage] +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(now - step.last_time).count();
  step.last_time = now;
}

// Runs stages whose rows need nothing of each other. Each worker has rows of its own, and takes a
// pass of them through all stages: what one stage writes, the next finds in the same core's cache,
// and nobody waits. With stages one by one for all rows, half of what a worker reads was written by
// others: a prompt of 512 rows took 1.3 times as long (two Zen 5 cores, 2026-11-25).
void Program::run_rows(Context& step, int first_stage, int end_stage, const Barrier& barrier,
                       int worker) const {
  const auto [first_row, end_row] = share(step.rows.count, worker, barrier.workers);
  const int passes = (end_row - first_row + kRowsOfPass - 1) / kRowsOfPass;
  for (int pass = 0; pass < passes; ++pass) {
    const auto [from, to] = share(end_row - first_row, pass, passes);
    const int begin = first_row + from, end = first_row + to;
    for (int stage = first_stage; stage < end_stage; ++stage) {
      const auto [first, last] = stages_[stage];
      if (const auto* linear = std::get_if<Linear>(&instructions_[first])) {
        ThreadScratch& own = step.own[worker];
        prepare_rows(step, *linear, begin, end, begin, own.prepared, own.row.get());
        multiply_rows(step, *linear, begin, end - begin, own.prepared, 0, linear->weight.blocks());
      } else {
        run_by_row(step, first, last, begin, end);
      }
      if (worker == 0) note_time(step, stage);
    }
  }
}

void Program::run_by_row(Context& step, int first, int last, int begin, int end) const {
  for (int row = begin; row < end; ++row) {
    for (int i = first; i <= last; ++i)
      run_row(step, instructions_[i], row);
  }
}

void Program::run_stage(Context& step, int stage, Barrier& barrier, int worker) const {
  const auto [first, last] = stages_[stage];
  const int rows = stage < first_kept_stage_ ? step.rows.count : step.rows.kept_count;
  const Instruction& one = instructions_[first];
  if (const auto* linear = std::get_if<Linear>(&one)) {
    run_linear(step, *linear, rows, barrier, worker);
  } else if (const auto* attend = std::get_if<Attend>(&one)) {
    run_attend(step, *attend, stage, barrier, worker);
  } else if (const auto* experts = std::get_if<Experts>(&one)) {
    run_experts(step, *experts, rows, barrier, worker);
  } else {
    const auto [begin, end] = share(rows, worker, barrier.workers);
    run_by_row(step, first, last, begin, end);
  }
}

void Program::run_row(Context& step, const Instruction& instruction, int row) const {
  if (const auto* embed = std::get_if<Embed>(&instruction)) {
    const std::int64_t entry =
        embed->by_position ? step.rows.positions[row] : step.rows.tokens[row];
    linear_.embed(embed->table, entry, embed->scale, at(step, embed->out, row));
  } else if (const auto* norm = std::get_if<Norm>(&instruction)) {
    row_.norm(at(step, norm->input, row), norm->input.width, norm->options,
              at(step, norm->out, row));
  } else if (const auto* rotate = std::get_if<Rotate>(&instruction)) {
    const int size = rotate->values.width / rotate->heads;
    const std::size_t place = static_cast<std::size_t>(step.rows.positions[row]) * size;
    row_.rotate(at(step, rotate->values, row), rotate->heads, size, rotate->own + place,
                rotate->other + place, rotate->partner);
  } else if (const auto* append = std::get_if<Append>(&instruction)) {
    const int slot = step.rows.slots[row];
    const std::int32_t block = step.rows.table_of(row)[slot / kBlockSlots];
    row_.append(layers_[append->layer], step.rows.blocks[block], slot % kBlockSlots,
                at(step, append->keys, row), at(step, append->values, row));
  } else if (const auto* combine = std::get_if<Combine>(&instruction)) {
    const float* right =
        combine->right.buffer >= 0 ? at(step, combine->right, row) : combine->vector;
    row_.combine(at(step, combine->out, row), at(step, combine->left, row), right,
                 combine->multiplies, combine->activation, combine->factor, combine->out.width);
  } else if (const auto* keep = std::get_if<Keep>(&instruction)) {
    std::memcpy(at(step, keep->out, row), at(step, keep->input, step.rows.kept[row]),
                keep->out.width * sizeof(float));
  } else if (const auto* load = std::get_if<Load>(&instruction)) {
    const std::size_t width = load->out.width;
    std::memcpy(at(step, load->out, row), step.rows.arguments[load->argument] + row * width,
                width * sizeof(float));
  } else if (const auto* store = std::get_if<Store>(&instruction)) {
    const std::size_t width = store->input.width;
    std::memcpy(step.rows.results[store->result] + row * width, at(step, store->input, row),
                width * sizeof(float));
  }
}

// Makes rows ready for a linear that does not take them as they are; `prepared` begins with
// `first_row`.
void Program::prepare_rows(Context& step, const Linear& linear, int begin, int end, int first_row,
                           QuantizedInput& prepared, float* normed_row) const {
  const PackedLinear& weight = linear.weight;
  if (takes_values(linear)) return;
  for (int row = begin; row < end; ++row) {
    const std::size_t place = row - first_row;
    const float* x = at(step, linear.input, row);
    if (linear.has_norm) {
      float* normed = weight.has_integers()
                          ? normed_row
                          : prepared.values.get() + place * rounded(weight.inputs, 16);
      row_.norm(x, weight.inputs, linear.norm, normed);
      x = normed;
    }
    if (weight.has_integers()) prepare(linear_, weight, x, prepared, place);
  }
}

// Products of rows from `first_row` on, with which `prepared` begins, and blocks.
void Program::multiply_rows(Context& step, const Linear& linear, int first_row, int rows,
                            const QuantizedInput& prepared, int first_block, int last_block) const {
  Activations inputs = activations(prepared, linear.weight.inputs, 0);
  if (takes_values(linear)) {
    inputs.values = at(step, linear.input, first_row);
    inputs.stride = strides_[linear.input.buffer];
  }
  const bool has_residual = linear.residual.buffer >= 0;
  const Finish finish{
      .bias = linear.bias,
      .residual = has_residual ? at(step, linear.residual, first_row) : nullptr,
      .residual_stride =
          has_residual ? static_cast<std::size_t>(strides_[linear.residual.buffer]) : 0,
      .factor = linear.factor,
      .activation = linear.activation,
      .gated = linear.is_gated,
      .soft_cap = linear.soft_cap};
  linear_.linear(linear.weight, inputs, rows, at(step, linear.out, first_row),
                 strides_[linear.out.buffer], first_block, last_block, finish);
}

void Program::run_linear(Context& step, const Linear& linear, int rows, Barrier& barrier,
                         int worker) const {
  ThreadScratch& own = step.own[worker];
  const bool is_alone = rows <= kRowsAlone;
  QuantizedInput& prepared = is_alone ? own.prepared : step.shared;
  const auto [first, last] = is_alone ? std::pair{0, rows} : share(rows, worker, barrier.workers);
  prepare_rows(step, linear, first, last, 0, prepared, own.row.get());
  if (!is_alone && !takes_values(linear)) barrier.wait();
  const int per_share = linear.is_gated ? 2 : 1;  // a gate's block and its partner stay together
  const auto [begin, end] = share(linear.weight.blocks() / per_share, worker, barrier.workers);
  if (begin < end) {
    multiply_rows(step, linear, 0, rows, prepared, begin * per_share, end * per_share);
  }
}

}  // namespace npu::ops::kernel_programs
