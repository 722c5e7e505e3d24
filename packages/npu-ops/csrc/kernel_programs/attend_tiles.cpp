// Attention of a step: rows of one sequence that follow each other attend together, as a tile.
#include <algorithm>
#include <vector>

#include "kernel_programs/program.h"
#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

constexpr int kTasksPerWorker = 3;  // fewer are split further, so that workers end together

PartialSums partial_sums(float* memory, int queries) {
  return {memory, memory + queries, memory + 2 * static_cast<std::size_t>(queries)};
}

}  // namespace

void Program::make_tiles(Context& step) const {
  const Rows& rows = step.rows;
  const int key_heads = step.needs.key_heads;
  step.has_selections = false;
  std::int32_t* chosen = selection_.blocks == 0 || !rows.is_decode
                             ? nullptr
                             : step.chosen_blocks.of(static_cast<std::size_t>(rows.count) *
                                                     key_heads * selection_.blocks);
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
      if (chosen != nullptr && rows.slots[row] >= selection_.after &&
          tile.newest >= selection_.blocks) {
        tile.all_blocks = tile.blocks;
        tile.blocks = chosen + static_cast<std::size_t>(row) * key_heads * selection_.blocks;
        tile.blocks_of_head = selection_.blocks;
        tile.first_slot = (selection_.blocks - 1) * kBlockSlots + rows.slots[row] % kBlockSlots;
        step.has_selections = true;
      }
      tiles.push_back(tile);
      row = end;
    }
  }
}

void Program::run_attend(Context& step, const Attend& attend, int stage, Barrier& barrier,
                         int worker) const {
  const LayerCache& cache = layers_[attend.layer];
  const int group = attend.heads / cache.key_heads, padded = cache.padded_value_size();
  const std::vector<Tile>& tiles = step.tiles.at(group);
  if (selection_.blocks > 0) note_bounds(step, cache, barrier, worker);
  if (step.has_selections) select_blocks(step, attend, barrier, worker);
  ThreadScratch& own = step.own[worker];
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
  const auto ready = [&](const Tile& tile, int key_head) {
    row_.ready(cache, queries_of(tile, key_head), attend.options, own.attend.get());
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
  if (pairs >= kTasksPerWorker * barrier.workers || most_pieces <= 2) {
    for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < pairs;) {
      const Tile& tile = tiles[task / cache.key_heads];
      const int key_head = task % cache.key_heads, queries = tile.rows * group;
      const PartialSums total = partial_sums(own.sums.get(), queries);
      const PartialSums piece_sums =
          partial_sums(own.sums.get() + partial_floats(queries, padded), queries);
      ready(tile, key_head);
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
  if (worker == 0) step.pieces.of(room * pairs * most_pieces);
  barrier.wait();
  const auto sums_of = [&](int pair, std::int64_t piece, const Tile& tile) {
    return partial_sums(step.pieces.get() + (pair * most_pieces + piece) * room, tile.rows * group);
  };
  const int tasks = static_cast<int>(pairs * most_pieces);
  for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
    const int pair = static_cast<int>(task / most_pieces);
    const Tile& tile = tiles[pair / cache.key_heads];
    const std::int64_t piece = first_piece(tile) + task % most_pieces;
    if (piece <= last_piece(tile)) {
      ready(tile, pair % cache.key_heads);
      attend_piece(tile, pair % cache.key_heads, piece, sums_of(pair, task % most_pieces, tile));
    }
  }
  barrier.wait();
  const auto [begin, end] = share(pairs, worker, barrier.workers);
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
