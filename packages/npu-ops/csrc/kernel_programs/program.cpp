#include "kernel_programs/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRowsAlone = 2;  // so few rows each member prepares for itself: dearer is a meeting
constexpr int kQueriesOfTile = 32;  // as many read the same keys together
constexpr int kTasksPerMember = 3;  // fewer are split further, so that members end together

int rows_of_tile(int group) {
  return std::max(1, kQueriesOfTile / group);
}

PartialSums partial_sums(float* memory, int queries) {
  return {memory, memory + queries, memory + 2 * static_cast<std::size_t>(queries)};
}

std::size_t partial_floats(int queries, int padded) {
  return static_cast<std::size_t>(queries) * (padded + 2);
}

}  // namespace

Program::Program(std::vector<Instruction> instructions, const std::vector<int>& widths,
                 std::vector<LayerCache> layers, View logits, const LinearKernels& linear,
                 const RowKernels& row, BlockChoice choice)
    : instructions_(std::move(instructions)),
      layers_(std::move(layers)),
      logits_(logits),
      linear_(linear),
      row_(row),
      choice_(choice) {
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
    const bool is_by_row = !std::holds_alternative<Linear>(one) &&
                           !std::holds_alternative<Attend>(one) &&
                           !std::holds_alternative<Experts>(one);
    const bool begins = std::holds_alternative<Keep>(one);  // reads what other members wrote
    if (is_by_row && was_by_row && !begins) {
      stages_.back().second = i;
    } else {
      stages_.emplace_back(i, i);
    }
    was_by_row = is_by_row;
    if (begins)
      first_kept_stage_ = std::min(first_kept_stage_, static_cast<int>(stages_.size()) - 1);
  }
}

float* Program::at(const Context& step, const View& view, std::size_t row) const {
  return step.bases[view.buffer] + row * strides_[view.buffer] + view.start;
}

void Program::find_needs() {
  Needs& needs = context_->needs;
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

void Program::reserve(Context& step, int members) const {
  const Needs& needs = step.needs;
  const std::size_t rows = step.rows.count, entries = rows * needs.chosen;
  if (static_cast<int>(step.own.size()) < members) step.own.resize(members);
  for (Own& own : step.own) {
    own.prepared.reserve(kRowsAlone, needs.inputs);
    own.row.of(rounded(needs.inputs, 16));
    own.attend.of(needs.attend);
    own.sums.of(needs.sums);
    own.expert.of(rows * needs.expert_results);
    if (choice_.blocks > 0) own.bound_queries.of(needs.bound_queries);
  }
  if (rows > kRowsAlone) step.shared.reserve(rows, needs.inputs);
  step.expert_inputs.reserve(entries, needs.expert_inputs);
  step.expert_inner.reserve(entries, needs.expert_inner);
  step.expert_values.of(entries * needs.expert_values);
  if (entries > 0) step.chosen.resize(std::max(step.chosen.size(), rows));
}

void Program::make_tiles(Context& step) const {
  const Rows& rows = step.rows;
  const int key_heads = step.needs.key_heads;
  step.has_choices = false;
  std::int32_t* chosen = choice_.blocks == 0 || !rows.is_decode
                             ? nullptr
                             : step.chosen_blocks.of(static_cast<std::size_t>(rows.count) *
                                                     key_heads * choice_.blocks);
  for (int group : step.needs.groups) {
    std::vector<Tile>& tiles = step.tiles[group];
    tiles.clear();
    for (int row = 0; row < rows.count;) {
      int end = row + 1;
      while (end < rows.count && end - row < rows_of_tile(group) &&
             rows.sequences[end] == rows.sequences[row] &&
             rows.slots[end] == rows.slots[end - 1] + 1) {
        ++end;
      }
      Tile tile{row, end - row, rows.slots[row], rows.table_of(row)};
      tile.newest = rows.slots[row] / kBlockSlots;
      if (chosen != nullptr && rows.slots[row] >= choice_.after && tile.newest >= choice_.blocks) {
        tile.all_blocks = tile.blocks;
        tile.blocks = chosen + static_cast<std::size_t>(row) * key_heads * choice_.blocks;
        tile.blocks_of_head = choice_.blocks;
        tile.first_slot = (choice_.blocks - 1) * kBlockSlots + rows.slots[row] % kBlockSlots;
        step.has_choices = true;
      }
      tiles.push_back(tile);
      row = end;
    }
  }
}

void Program::run(const Rows& rows, float* logits, int members, std::int64_t* times_ns) {
  const std::lock_guard lock(mutex_);
  Context& step = *context_;
  step.rows = rows;
  step.times_ns = times_ns;
  for (std::size_t i = 0; i < strides_.size(); ++i) {
    const std::size_t count = static_cast<std::size_t>(rows.count) * strides_[i];
    step.bases[i] = static_cast<int>(i) == logits_.buffer ? logits : step.buffers[i].of(count);
  }
  reserve(step, std::max(members, 1));
  make_tiles(step);
  for (auto& counter : step.counters)
    counter.store(0, std::memory_order_relaxed);
  step.last_time = Clock::now();
  const auto work = [&](Crew& crew, int member) {
    for (int stage = 0; stage < static_cast<int>(stages_.size()); ++stage) {
      if (stage == first_kept_stage_ && rows.kept_count == 0) break;  // nobody asked for logits
      run_stage(step, stage, crew, member);
      crew.meet();
      if (member == 0 && step.times_ns != nullptr) {
        const auto now = Clock::now();
        step.times_ns[stage] =
            std::chrono::duration_cast<std::chrono::nanoseconds>(now - step.last_time).count();
        step.last_time = now;
      }
    }
  };
  if (members == kAlone) {
    run_alone(work);
  } else {
    run_together(members, work);
  }
}

void Program::run_stage(Context& step, int stage, Crew& crew, int member) const {
  const auto [first, last] = stages_[stage];
  const int rows = stage < first_kept_stage_ ? step.rows.count : step.rows.kept_count;
  const Instruction& one = instructions_[first];
  if (const auto* linear = std::get_if<Linear>(&one)) {
    run_linear(step, *linear, rows, crew, member);
  } else if (const auto* attend = std::get_if<Attend>(&one)) {
    run_attend(step, *attend, stage, crew, member);
  } else if (const auto* experts = std::get_if<Experts>(&one)) {
    run_experts(step, *experts, rows, crew, member);
  } else {
    const auto [begin, end] = share(rows, member, crew.members);
    for (int row = begin; row < end; ++row) {
      for (int i = first; i <= last; ++i)
        run_row(step, instructions_[i], row);
    }
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

void Program::run_linear(Context& step, const Linear& linear, int rows, Crew& crew,
                         int member) const {
  const PackedLinear& weight = linear.weight;
  Own& own = step.own[member];
  const bool is_alone = rows <= kRowsAlone;
  Prepared& prepared = is_alone ? own.prepared : step.shared;
  const bool is_ready = !weight.has_integers() && !linear.has_norm;
  if (!is_ready) {
    const auto [begin, end] = is_alone ? std::pair{0, rows} : share(rows, member, crew.members);
    for (int row = begin; row < end; ++row) {
      const float* x = at(step, linear.input, row);
      if (linear.has_norm) {
        float* normed = weight.has_integers()
                            ? own.row.get()
                            : prepared.values.get() + row * rounded(weight.inputs, 16);
        row_.norm(x, weight.inputs, linear.norm, normed);
        x = normed;
      }
      if (weight.has_integers()) prepare(linear_, weight, x, prepared, row);
    }
    if (!is_alone) crew.meet();
  }
  Activations inputs = activations(prepared, weight.inputs, 0);
  if (is_ready) {
    inputs.values = at(step, linear.input, 0);
    inputs.stride = strides_[linear.input.buffer];
  }
  const int per_share = linear.is_gated ? 2 : 1;  // a gate's block and its partner stay together
  const auto [begin, end] = share(weight.blocks() / per_share, member, crew.members);
  if (begin == end) return;
  const bool has_residual = linear.residual.buffer >= 0;
  const Finish finish{
      .bias = linear.bias,
      .residual = has_residual ? at(step, linear.residual, 0) : nullptr,
      .residual_stride =
          has_residual ? static_cast<std::size_t>(strides_[linear.residual.buffer]) : 0,
      .factor = linear.factor,
      .activation = linear.activation,
      .gated = linear.is_gated,
      .soft_cap = linear.soft_cap};
  linear_.linear(weight, inputs, rows, at(step, linear.out, 0), strides_[linear.out.buffer],
                 begin * per_share, end * per_share, finish);
}

void Program::run_attend(Context& step, const Attend& attend, int stage, Crew& crew,
                         int member) const {
  const LayerCache& cache = layers_[attend.layer];
  const int group = attend.heads / cache.key_heads, padded = cache.padded_value_size();
  const std::vector<Tile>& tiles = step.tiles.at(group);
  if (choice_.blocks > 0) note_bounds(step, cache, crew, member);
  if (step.has_choices) choose_blocks(step, attend, crew, member);
  Own& own = step.own[member];
  const auto first_piece = [&](const Tile& tile) {
    const std::int64_t window = attend.options.window;
    return window > 0 ? std::max<std::int64_t>(0, tile.first_slot - window + 1) / kPieceSlots : 0;
  };
  const auto last_piece = [](const Tile& tile) {
    return (tile.first_slot + tile.rows - 1) / kPieceSlots;
  };
  const auto queries_of = [&](const Tile& tile, int key_head) {
    return Queries{.values = at(step, attend.queries, tile.first_row) +
                             static_cast<std::size_t>(key_head) * group * cache.key_size,
                   .row_stride = static_cast<std::size_t>(strides_[attend.queries.buffer]),
                   .rows = tile.rows,
                   .group = group,
                   .first_head = key_head * group,
                   .first_slot = tile.first_slot};
  };
  const auto attend_piece = [&](const Tile& tile, int key_head, std::int64_t piece,
                                const PartialSums& out) {
    unsigned char* blocks[kPieceSlots / kBlockSlots];
    const std::int64_t start = piece * kPieceSlots;
    const std::int64_t end =
        std::min<std::int64_t>(start + kPieceSlots, tile.first_slot + tile.rows);
    for (std::int64_t slot = start; slot < end; slot += kBlockSlots) {
      const std::int32_t block = tile.blocks_of(key_head)[slot / kBlockSlots];
      blocks[(slot - start) / kBlockSlots] = step.rows.blocks[block];
    }
    row_.attend(cache, key_head, blocks, start, end, queries_of(tile, key_head), attend.options,
                out, own.attend.get());
  };
  const auto finish = [&](const Tile& tile, int key_head, const PartialSums& total) {
    row_.finish(total, cache, queries_of(tile, key_head), attend.options,
                at(step, attend.out, tile.first_row) +
                    static_cast<std::size_t>(key_head) * group * cache.value_size,
                strides_[attend.out.buffer]);
  };
  std::atomic<int>& next = step.counters[stage];
  const int pairs = static_cast<int>(tiles.size()) * cache.key_heads;
  std::int64_t most_pieces = 0;
  for (const Tile& tile : tiles) {
    most_pieces = std::max(most_pieces, last_piece(tile) - first_piece(tile) + 1);
  }
  if (pairs >= kTasksPerMember * crew.members || most_pieces <= 2) {
    for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < pairs;) {
      const Tile& tile = tiles[task / cache.key_heads];
      const int key_head = task % cache.key_heads, queries = tile.rows * group;
      const PartialSums total = partial_sums(own.sums.get(), queries);
      const PartialSums piece_sums =
          partial_sums(own.sums.get() + partial_floats(queries, padded), queries);
      for (std::int64_t piece = first_piece(tile); piece <= last_piece(tile); ++piece) {
        const bool is_first = piece == first_piece(tile);
        attend_piece(tile, key_head, piece, is_first ? total : piece_sums);
        if (!is_first) row_.merge(total, piece_sums, queries, padded);
      }
      finish(tile, key_head, total);
    }
    return;
  }
  // Few rows with much to look at: pieces are work of their own, and are merged in their order, as
  // above, so that the sums are the same.
  const std::size_t room = partial_floats(rows_of_tile(group) * group, padded);
  if (member == 0) step.pieces.of(room * pairs * most_pieces);
  crew.meet();
  const auto sums_of = [&](int pair, std::int64_t piece, const Tile& tile) {
    return partial_sums(step.pieces.get() + (pair * most_pieces + piece) * room, tile.rows * group);
  };
  const int tasks = static_cast<int>(pairs * most_pieces);
  for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
    const int pair = static_cast<int>(task / most_pieces);
    const Tile& tile = tiles[pair / cache.key_heads];
    const std::int64_t piece = first_piece(tile) + task % most_pieces;
    if (piece <= last_piece(tile)) {
      attend_piece(tile, pair % cache.key_heads, piece, sums_of(pair, task % most_pieces, tile));
    }
  }
  crew.meet();
  const auto [begin, end] = share(pairs, member, crew.members);
  for (int pair = begin; pair < end; ++pair) {
    const Tile& tile = tiles[pair / cache.key_heads];
    const PartialSums total = sums_of(pair, 0, tile);
    for (std::int64_t piece = 1; piece <= last_piece(tile) - first_piece(tile); ++piece) {
      row_.merge(total, sums_of(pair, piece, tile), tile.rows * group, padded);
    }
    finish(tile, pair % cache.key_heads, total);
  }
}

}  // namespace npu::ops::kernel_programs
