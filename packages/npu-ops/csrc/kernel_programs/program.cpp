#include "kernel_programs/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRowsAlone = 2;      // each worker prepares as many itself: a stage costs more
constexpr int kRowsOfPass = 96;    // values stay in a worker's cache from stage to stage
constexpr int kRowsOfMember = 32;  // fewer do not pay for a worker's reads of weights
// A product's piece takes some microseconds, so that a late one costs little; its results stay in a
// near cache until they are written.
constexpr std::size_t kBytesOfPiece = 16 << 10;
constexpr int kMostPiecesPerWorker = 24;

std::int64_t nanoseconds_since(Clock::time_point time) {
  return std::chrono::nanoseconds(Clock::now() - time).count();
}

bool is_linear(const Instruction& one) {
  return std::holds_alternative<Linear>(one);
}

// Whether a linear's kernel reads its input in place.
bool takes_values(const Linear& linear) {
  return !linear.weight.has_integers() && !linear.has_norm;
}

// Whether rows depend on other rows.
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
  context_ = std::make_unique<Context>();
  context_->buffers.resize(widths.size());
  find_needs();
  for (auto& step : steps_)
    step = std::make_unique<Step>(*this, *context_);
}

Program::~Program() {
  for (auto& step : steps_)
    retire(*step);
}

// Adjacent row-wise instructions form one stage, without a barrier between them.
void Program::make_stages() {
  bool was_by_row = false;
  first_kept_stage_ = static_cast<int>(instructions_.size());
  for (int i = 0; i < static_cast<int>(instructions_.size()); ++i) {
    const Instruction& one = instructions_[i];
    const bool is_by_row = !is_linear(one) && !is_mixing(one);
    const bool begins = std::holds_alternative<Keep>(one);  // reads data written by other workers
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

int Program::rows_of(const Step& step, int stage) const {
  return stage < first_kept_stage_ ? step.rows.count : step.rows.kept_count;
}

float* Program::at(const Step& step, const View& view, std::size_t row) const {
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
      raise(needs.experts, experts->gate_up.size());
      raise(needs.expert_inputs, up.inputs);
      raise(needs.expert_inner, down.inputs);
      raise(needs.expert_values, rounded(up.outputs, 16));
    }
  }
}

// Memory that grows is freed, so no worker may still read it for an earlier step.
void Program::reserve(Step& step, int workers) {
  Context& all = *context_;
  const ScratchSizes& needs = all.needs;
  if (static_cast<int>(all.own.size()) < workers) {
    for (auto& one : steps_)
      retire(*one);
    all.own.resize(workers);
  }
  const std::size_t rows = step.rows.count, entries = rows * needs.chosen;
  const std::size_t together = step.are_rows_split ? step.rows.kept_count : rows;
  const auto for_all = [&](const auto& need) {
    for (std::size_t i = 0; i < strides_.size(); ++i) {
      if (static_cast<int>(i) != logits_.buffer) need(all.buffers[i], rows * strides_[i]);
    }
    for (ThreadScratch& own : all.own) {
      own.prepared.for_rows(step.are_rows_split ? kRowsOfPass : kRowsAlone, needs.inputs, need);
      need(own.row, rounded(needs.inputs, 16));
      need(own.attend, needs.attend);
      need(own.sums, needs.sums);
      need(own.results, step.result_floats);
      need(own.expert, step.expert_floats);
      need(own.order, needs.experts);
      if (step.has_selections) {
        need(own.bound_queries, needs.bound_queries);
        need(own.ranks, 2 * step.most_candidates);
      }
    }
    if (together > kRowsAlone) all.shared.for_rows(together, needs.inputs, need);
    all.expert_inputs.for_rows(entries, needs.expert_inputs, need);
    all.expert_inner.for_rows(entries, needs.expert_inner, need);
    need(all.expert_values, entries * needs.expert_values);
    need(all.pieces, step.piece_floats);
    if (step.has_selections) {
      need(all.bounds, rows * needs.heads * step.most_candidates);
    }
  };
  bool is_enough = true;
  for_all([&](auto& memory, std::size_t count) { is_enough &= memory.size() >= count; });
  if (is_enough) return;
  for (auto& one : steps_)
    retire(*one);
  for_all([](auto& memory, std::size_t count) { memory.of(count); });
}

void Program::run(const Rows& rows, float* logits, int workers, const StepTimes& times) {
  const std::lock_guard lock(mutex_);
  Step& step = *steps_[++step_count_ % steps_.size()];
  retire(step);
  step.number = step_count_;
  step.rows = rows;
  if (rows.block_tables != nullptr) {
    const int sequences = 1 + *std::max_element(rows.sequences, rows.sequences + rows.count);
    step.block_tables.assign(rows.block_tables,
                             rows.block_tables + std::size_t(sequences) * rows.table_width);
    step.rows.block_tables = step.block_tables.data();
  }
  const int used = std::max(workers, 1);
  step.are_rows_split = rows.count >= kRowsOfMember * used;
  plan(step, used);
  reserve(step, used);
  for (std::size_t i = 0; i < strides_.size(); ++i)
    step.bases[i] = static_cast<int>(i) == logits_.buffer ? logits : context_->buffers[i].get();
  step.times = times;
  step.began = Clock::now();
  step.end_ns = step.last_end_ns = 0;
  if (workers == kAlone) {
    run_alone(step);
  } else {
    run_job(step, workers);
  }
}

void Program::Step::add(const Phase& phase, bool is_repeatable, int most_together) {
  phases.push_back(phase);
  stages.push_back({phase.pieces, is_repeatable, most_together});
}

// A phase's time counts for its stage; the time of passes is divided in proportion to their stages.
void Program::Step::end_stage(int index) noexcept {
  if (times.stages == nullptr) return;
  const Phase& phase = phases[index];
  const std::int64_t ns = end_ns - last_end_ns;
  last_end_ns += ns;
  std::int64_t of_all = 0;
  if (phase.kind == Phase::Kind::passes) {
    for (int stage = phase.stage; stage < phase.end_stage; ++stage)
      of_all += pass_ns[stage];
  }
  if (of_all == 0) {
    times.stages[phase.stage] += ns;
    return;
  }
  for (int stage = phase.stage; stage < phase.end_stage; ++stage) {
    times.stages[stage] +=
        static_cast<std::int64_t>(static_cast<double>(ns) * pass_ns[stage].exchange(0) / of_all);
  }
}

void Program::plan(Step& step, int workers) const {
  step.stages.clear();
  step.phases.clear();
  step.result_floats = step.piece_floats = step.expert_floats = 0;
  make_tiles(step);
  step.groups.resize(step.context.needs.experts == 0 ? 0 : stages_.size());
  const auto few = [&](int count) { return std::min(count, kTasksPerWorker * workers); };
  for (int stage = 0; stage < static_cast<int>(stages_.size()); ++stage) {
    if (stage == first_kept_stage_ && step.rows.kept_count == 0) break;  // no logits requested
    const int end = step.are_rows_split ? ends_of_rows_alone_[stage] : stage;
    if (end > stage) {
      const int passes = (step.rows.count + kRowsOfPass - 1) / kRowsOfPass;
      const int pieces = (passes + workers - 1) / workers * workers;  // of nearly equal size
      step.add({Phase::Kind::passes, stage, end, step.rows.count, pieces}, false);
      stage = end - 1;
      continue;
    }
    const int rows = rows_of(step, stage);
    const Instruction& one = instructions_[stages_[stage].first];
    if (const auto* linear = std::get_if<Linear>(&one)) {
      const PackedLinear& weight = linear->weight;
      if (rows > kRowsAlone && !takes_values(*linear)) {
        step.add({Phase::Kind::prepare, stage, stage + 1, rows, few(rows)}, false);
      }
      const int pairs = (weight.blocks() + 1) / 2;  // a gate's block and its partner
      const std::size_t bytes = weight.blocks() * weight.block_bytes();
      const std::size_t results = std::size_t(rows) * rounded(weight.outputs, 32);
      const auto wanted = std::max(
          std::min<std::size_t>(bytes / kBytesOfPiece, std::size_t(kMostPiecesPerWorker) * workers),
          results / kResultsOfPiece);
      const int of_piece = std::max(1, pairs / static_cast<int>(std::max<std::size_t>(wanted, 1)));
      const int pieces = std::max((pairs + of_piece - 1) / of_piece, std::min(pairs, workers));
      const int columns = (pairs + pieces - 1) / pieces * (linear->is_gated ? 16 : 32);
      const std::size_t floats = std::size_t(rows) * columns;
      const int together = std::max<int>(1, kResultsOfPiece / floats);
      step.result_floats = std::max(step.result_floats, floats * std::min(together, pieces));
      // The logits' memory belongs to the caller.
      const bool reads_logits = logits_.buffer >= 0 && (linear->input.buffer == logits_.buffer ||
                                                        linear->residual.buffer == logits_.buffer);
      step.add({Phase::Kind::product, stage, stage + 1, pairs, pieces}, !reads_logits,
               reads_logits ? 1 : together);
    } else if (std::holds_alternative<Attend>(one)) {
      plan_attention(step, stage, workers);
    } else if (std::holds_alternative<Experts>(one)) {
      plan_experts(step, stage, rows, workers);
    } else {
      step.add({Phase::Kind::rows, stage, stage + 1, rows, few(rows)}, false);
    }
  }
}

// Time counts as work for the worker that wrote its result, not for a dropped copy.
void Program::Step::compute(int index, int first, int end, int worker) noexcept {
  if (times.workers == nullptr) return program.compute(*this, phases[index], first, end, worker);
  const auto compute_began = Clock::now();
  program.compute(*this, phases[index], first, end, worker);
  context.own[worker].compute_ns = nanoseconds_since(compute_began);
}

void Program::Step::commit(int index, int first, int end, int worker) noexcept {
  const bool is_timed = times.workers != nullptr;
  const auto commit_began = is_timed ? Clock::now() : Clock::time_point();
  ThreadScratch& own = context.own[worker];
  if (!stages[index].is_repeatable) {
    own.result = {};
    program.compute(*this, phases[index], first, end, worker);
    own.compute_ns = 0;
  }
  const Result& result = own.result;
  int column = 0, width = result.width;
  if (result.unit > 0) {
    const auto [from, to] = phases[index].range(first, end);
    column = (from - result.first) * result.unit;
    width = std::min(width - column, (to - from) * result.unit);
  }
  for (int row = 0; row < result.rows; ++row) {
    std::memcpy(result.to + row * result.to_stride + column,
                own.results.get() + row * result.stride + column, width * sizeof(float));
  }
  if (times.stages != nullptr) {
    const std::int64_t now = nanoseconds_since(began);
    std::int64_t last = end_ns.load(std::memory_order_relaxed);
    while (last < now && !end_ns.compare_exchange_weak(last, now)) {
    }
  }
  if (!is_timed || phases[index].kind == Phase::Kind::passes) return;
  add_work(phases[index].stage, worker, nanoseconds_since(commit_began) + own.compute_ns);
  own.compute_ns = 0;  // of several pieces computed together
}

void Program::Step::add_work(int stage, int worker, std::int64_t ns) const {
  times.workers[worker * program.stages().size() + stage] += ns;
}

void Program::compute(Step& step, const Phase& phase, int piece, int end_piece, int worker) const {
  const auto [first, last] = stages_[phase.stage];
  const auto [begin, end] = phase.range(piece, end_piece);
  switch (phase.kind) {
    case Phase::Kind::rows:
      return run_by_row(step, first, last, begin, end);
    case Phase::Kind::passes:
      return run_pass(step, phase, begin, end, worker);
    case Phase::Kind::prepare:
      return prepare_rows(step, std::get<Linear>(instructions_[first]), begin, end, 0,
                          step.context.shared, step.context.own[worker].row.get());
    case Phase::Kind::product:
      return multiply(step, phase, begin, end, worker);
    case Phase::Kind::bounds:
      return note_bounds(step, phase, begin, end);
    case Phase::Kind::candidates:
      return bound_candidates(step, phase, piece, worker);
    case Phase::Kind::blocks:
      return choose_blocks(step, phase, piece, worker);
    case Phase::Kind::heads:
      return attend_heads(step, phase, piece, worker);
    case Phase::Kind::pieces:
      return attend_pieces(step, phase, piece, worker);
    case Phase::Kind::merge:
      return merge_pieces(step, phase, piece, worker);
    case Phase::Kind::choose:
      return choose_experts(step, phase, begin, end, worker);
    case Phase::Kind::group:
      return group_rows(step, phase);
    case Phase::Kind::expert_inputs:
    case Phase::Kind::expert_inner:
      return prepare_entries(step, phase, begin, end);
    case Phase::Kind::expert_up:
      return multiply_up(step, phase, begin, end, worker);
    case Phase::Kind::expert_down:
      return multiply_down(step, phase, begin, end, worker);
  }
}

// Runs row-wise stages for a pass of rows: the output of a stage stays in the core's cache for the
// next, without barriers. With stages one by one for all rows, half of a worker's input was written
// by others: a prompt of 512 rows took 1.3 times as long (two Zen 5 cores, 2026-11-25).
void Program::run_pass(Step& step, const Phase& phase, int begin, int end, int worker) const {
  ThreadScratch& own = step.context.own[worker];
  auto last_time = Clock::now();
  for (int stage = phase.stage; stage < phase.end_stage; ++stage) {
    const auto [first, last] = stages_[stage];
    if (const auto* linear = std::get_if<Linear>(&instructions_[first])) {
      prepare_rows(step, *linear, begin, end, begin, own.prepared, own.row.get());
      multiply_rows(step, *linear, begin, end - begin, own.prepared, 0, linear->weight.blocks(),
                    at(step, linear->out, begin), strides_[linear->out.buffer]);
    } else {
      run_by_row(step, first, last, begin, end);
    }
    if (step.times.stages == nullptr) continue;
    const std::int64_t ns = nanoseconds_since(last_time);
    last_time = Clock::now();
    step.pass_ns[stage] += ns;
    if (step.times.workers != nullptr) step.add_work(stage, worker, ns);
  }
  own.prepared_for = 0;
}

void Program::run_by_row(const Step& step, int first, int last, int begin, int end) const {
  for (int row = begin; row < end; ++row) {
    for (int i = first; i <= last; ++i)
      run_row(step, instructions_[i], row);
  }
}

void Program::run_row(const Step& step, const Instruction& instruction, int row) const {
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
    row_.append(layers_[append->layer], (*step.rows.blocks)[block], slot % kBlockSlots,
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

// Prepares rows for a linear that does not read them in place; `prepared` begins with `first_row`.
void Program::prepare_rows(const Step& step, const Linear& linear, int begin, int end,
                           int first_row, QuantizedInput& prepared, float* normed_row) const {
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
void Program::multiply_rows(const Step& step, const Linear& linear, int first_row, int rows,
                            const QuantizedInput& prepared, int first_block, int last_block,
                            float* out, std::size_t out_stride) const {
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
  linear_.linear(linear.weight, inputs, rows, out, out_stride, first_block, last_block, finish);
}

// The pairs [begin, end) of blocks.
void Program::multiply(const Step& step, const Phase& phase, int begin, int end, int worker) const {
  const auto& linear = std::get<Linear>(instructions_[stages_[phase.stage].first]);
  const int rows = rows_of(step, phase.stage);
  ThreadScratch& own = step.context.own[worker];
  const bool is_alone = rows <= kRowsAlone;
  if (is_alone && own.prepared_for != step.key(phase)) {
    prepare_rows(step, linear, 0, rows, 0, own.prepared, own.row.get());
    own.prepared_for = step.key(phase);
  }
  const int per_pair = linear.is_gated ? kBlockOutputs : 2 * kBlockOutputs,
            column = begin * per_pair;
  const int stride = (end - begin) * per_pair;
  // The kernel writes a block's results to its own columns.
  multiply_rows(step, linear, 0, rows, is_alone ? own.prepared : step.context.shared, 2 * begin,
                std::min(2 * end, linear.weight.blocks()), own.results.get() - column, stride);
  own.result = {.to = at(step, linear.out, 0) + column,
                .to_stride = static_cast<std::size_t>(strides_[linear.out.buffer]),
                .stride = static_cast<std::size_t>(stride),
                .rows = rows,
                .width = std::min(stride, linear.out.width - column),
                .first = begin,
                .unit = per_pair};
}

}  // namespace npu::ops::kernel_programs
