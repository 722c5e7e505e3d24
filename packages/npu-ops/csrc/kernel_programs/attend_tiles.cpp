// Attention of a step: consecutive rows of a sequence attend together, as a tile.
#include <algorithm>
#include <vector>

#include "kernel_programs/program.h"
#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

constexpr int kMostTasksPerWorker = 8, kMostTogether = 8;

PartialSums partial_sums(float* memory, int queries) {
  return {memory, memory + queries, memory + 2 * static_cast<std::size_t>(queries)};
}

}  // namespace

void Program::make_tiles(Step& step) const {
  const Rows& rows = step.rows;
  const int key_heads = step.context.needs.key_heads;
  step.has_selections = false;
  step.most_candidates = 0;
  std::int32_t* chosen = selection_.blocks == 0 || !rows.is_decode
                             ? nullptr
                             : step.chosen_blocks.of(static_cast<std::size_t>(rows.count) *
                                                     key_heads * selection_.blocks);
  for (int group : step.context.needs.groups) {
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
      if (chosen != nullptr && rows.slots[row] >= selection_.after &&
          tile.newest >= selection_.blocks) {
        tile.all_blocks = tile.blocks;
        tile.blocks = chosen + static_cast<std::size_t>(row) * key_heads * selection_.blocks;
        tile.blocks_of_head = selection_.blocks;
        tile.first_slot = (selection_.blocks - 1) * kBlockSlots + rows.slots[row] % kBlockSlots;
        step.has_selections = true;
        step.most_candidates =
            std::max<std::size_t>(step.most_candidates, tile.newest - kNewestBlocks);
      }
      tiles.push_back(tile);
      row = end;
    }
  }
}

// One instruction's attention in a step.
struct Program::Attention {
  const Program& program;
  const Step& step;
  const Attend& attend;
  const LayerCache& cache;
  const std::vector<Tile>& tiles;
  int group;
  ThreadScratch& own;

  const Tile& tile(int pair) const { return tiles[pair / cache.key_heads]; }
  int key_head(int pair) const { return pair % cache.key_heads; }
  int padded() const { return cache.padded_value_size(); }

  // Floats of the sums of a piece.
  std::size_t room() const { return partial_floats(rows_of_tile(group) * group, padded()); }

  Queries queries(int pair) const {
    const Tile& of = tile(pair);
    return {.values = program.at(step, attend.queries, of.first_row) +
                      static_cast<std::size_t>(key_head(pair)) * group * cache.key_size,
            .row_stride = static_cast<std::size_t>(program.strides_[attend.queries.buffer]),
            .rows = of.rows,
            .group = group,
            .first_head = key_head(pair) * group,
            .first_slot = of.first_slot};
  }
  void ready(int pair) const {
    program.row_.ready(cache, queries(pair), attend.options, own.attend.get());
  }
  void piece(int pair, std::int64_t piece, const PartialSums& out) const {
    const Tile& of = tile(pair);
    unsigned char* blocks[kPieceSlots / kBlockSlots];
    const std::int64_t start = piece * kPieceSlots;
    const std::int64_t end = std::min<std::int64_t>(start + kPieceSlots, of.first_slot + of.rows);
    for (std::int64_t slot = start; slot < end; slot += kBlockSlots) {
      const std::int32_t block = of.blocks_of(key_head(pair))[slot / kBlockSlots];
      blocks[(slot - start) / kBlockSlots] = (*step.rows.blocks)[block];
    }
    program.row_.attend(cache, key_head(pair), blocks, start, end, queries(pair), attend.options,
                        out, own.attend.get());
  }
  void finish(int pair, const PartialSums& total) const {
    const Tile& of = tile(pair);
    const int width = group * cache.value_size;
    program.row_.finish(total, cache, queries(pair), attend.options, own.results.get(), width);
    own.result = {.to = program.at(step, attend.out, of.first_row) +
                        static_cast<std::size_t>(key_head(pair)) * width,
                  .to_stride = static_cast<std::size_t>(program.strides_[attend.out.buffer]),
                  .stride = static_cast<std::size_t>(width),
                  .rows = of.rows,
                  .width = width};
  }
};

Program::Attention Program::attention(const Step& step, const Phase& phase, int worker) const {
  const auto& attend = std::get<Attend>(instructions_[stages_[phase.stage].first]);
  const LayerCache& cache = layers_[attend.layer];
  const int group = attend.heads / cache.key_heads;
  return {*this, step, attend, cache, step.tiles.at(group), group, step.context.own[worker]};
}

void Program::plan_attention(Step& step, int stage, int workers) const {
  Phase phase{Phase::Kind::heads, stage, stage + 1, 1, 1};
  const auto& attend = std::get<Attend>(instructions_[stages_[stage].first]);
  const LayerCache& cache = layers_[attend.layer];
  const int group = attend.heads / cache.key_heads;
  const std::vector<Tile>& tiles = step.tiles.at(group);
  const int pairs = static_cast<int>(tiles.size()) * cache.key_heads;
  const auto add = [&](Phase::Kind kind, int count, int pieces, bool is_repeatable) {
    phase.kind = kind;
    phase.count = count;
    phase.pieces = pieces;
    step.add(phase, is_repeatable);
  };
  const auto is_full = [&](int slot) { return slot % kBlockSlots == kBlockSlots - 1; };
  if (selection_.blocks > 0 &&
      std::any_of(step.rows.slots, step.rows.slots + step.rows.count, is_full)) {
    add(Phase::Kind::bounds, step.rows.count, std::min(step.rows.count, workers), false);
  }
  if (step.has_selections) {
    add(Phase::Kind::candidates, 1, kTasksPerWorker * workers, false);
    add(Phase::Kind::blocks, pairs, pairs, false);
  }
  const int rows = rows_of_tile(group);
  const std::size_t room = partial_floats(rows * group, cache.padded_value_size());
  step.result_floats =
      std::max({step.result_floats, static_cast<std::size_t>(rows) * group * cache.value_size});
  std::int64_t most_pieces = 0;
  for (const Tile& tile : tiles) {
    most_pieces =
        std::max(most_pieces, tile.last_piece() - tile.first_piece(attend.options.window) + 1);
  }
  if (pairs >= kTasksPerWorker * workers || most_pieces <= 2) {
    return add(Phase::Kind::heads, pairs, pairs, true);
  }
  // Few rows with long contexts: pieces are separate work items, and are merged in order, like
  // those of heads, so that the sums are the same.
  phase.most_pieces = static_cast<int>(most_pieces);
  phase.together = static_cast<int>(std::clamp<std::int64_t>(
      pairs * most_pieces / (kMostTasksPerWorker * workers), 1, kMostTogether));
  const int per_pair = (phase.most_pieces + phase.together - 1) / phase.together;
  step.result_floats = std::max(step.result_floats, room * phase.together);
  step.piece_floats = std::max(step.piece_floats, room * pairs * most_pieces);
  add(Phase::Kind::pieces, pairs, pairs * per_pair, true);
  add(Phase::Kind::merge, pairs, pairs, false);
}

void Program::attend_heads(const Step& step, const Phase& phase, int pair, int worker) const {
  const Attention of = attention(step, phase, worker);
  const Tile& tile = of.tile(pair);
  const int queries = tile.rows * of.group;
  const PartialSums total = partial_sums(of.own.sums.get(), queries);
  const PartialSums sums =
      partial_sums(of.own.sums.get() + partial_floats(queries, of.padded()), queries);
  of.ready(pair);
  const std::int64_t first = tile.first_piece(of.attend.options.window);
  for (std::int64_t piece = first; piece <= tile.last_piece(); ++piece) {
    of.piece(pair, piece, piece == first ? total : sums);
    if (piece != first) row_.merge(total, sums, queries, of.padded());
  }
  of.finish(pair, total);
}

void Program::attend_pieces(const Step& step, const Phase& phase, int task, int worker) const {
  const Attention of = attention(step, phase, worker);
  const int per_pair = (phase.most_pieces + phase.together - 1) / phase.together;
  const int pair = task / per_pair, place = task % per_pair * phase.together;
  const Tile& tile = of.tile(pair);
  const std::int64_t first = tile.first_piece(of.attend.options.window) + place;
  const std::int64_t end = std::min<std::int64_t>(first + phase.together, tile.last_piece() + 1);
  const std::size_t room = of.room();
  of.own.result = {};
  if (first >= end) return;
  of.ready(pair);
  for (std::int64_t piece = first; piece < end; ++piece) {
    of.piece(pair, piece,
             partial_sums(of.own.results.get() + (piece - first) * room, tile.rows * of.group));
  }
  const std::size_t used = partial_floats(tile.rows * of.group, of.padded());
  of.own.result = {.to = step.context.pieces.get() +
                         (static_cast<std::size_t>(pair) * phase.most_pieces + place) * room,
                   .to_stride = room,
                   .stride = room,
                   .rows = static_cast<int>(end - first),
                   .width = static_cast<int>(used)};
}

void Program::merge_pieces(const Step& step, const Phase& phase, int pair, int worker) const {
  const Attention of = attention(step, phase, worker);
  const Tile& tile = of.tile(pair);
  const int queries = tile.rows * of.group;
  const auto sums_of = [&](std::int64_t piece) {
    const std::size_t place = static_cast<std::size_t>(pair) * phase.most_pieces + piece;
    return partial_sums(step.context.pieces.get() + place * of.room(), queries);
  };
  const PartialSums total = sums_of(0);
  const std::int64_t pieces = tile.last_piece() - tile.first_piece(of.attend.options.window) + 1;
  for (std::int64_t piece = 1; piece < pieces; ++piece)
    row_.merge(total, sums_of(piece), queries, of.padded());
  of.finish(pair, total);
}

}  // namespace npu::ops::kernel_programs
