// Sparse attention of a decode step: each key head of a long sequence attends to the blocks with
// the highest score bounds, after Quest (arXiv 2406.10774).
//
// The selected blocks form a shorter sequence for the kernels. They always include the first and
// the two newest: the newest is not full, so it has no bounds yet.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernel_programs/program.h"
#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Writes the `count` highest-ranked candidates, in order; ties go to the newest.
void choose(const float* ranks, int candidates, int count, float* scratch, std::int32_t* chosen) {
  std::copy(ranks, ranks + candidates, scratch);
  std::nth_element(scratch, scratch + count - 1, scratch + candidates, std::greater<float>());
  const float least = scratch[count - 1];
  int above = 0;
  for (int i = 0; i < candidates; ++i)
    above += ranks[i] > least ? 1 : 0;
  int equal = count - above, place = count;
  for (int i = candidates - 1; i >= 0; --i) {
    const bool is_equal = ranks[i] == least;
    if (ranks[i] > least || (is_equal && equal > 0)) {
      equal -= is_equal ? 1 : 0;
      chosen[--place] = i;
    }
  }
}

}  // namespace

// A block is full if its last slot was written in this step, and gets bounds. A block rewritten
// after a crop becomes full again, so bounds always match the keys.
void Program::note_bounds(const Step& step, const Phase& phase, int begin, int end) const {
  const auto& attend = std::get<Attend>(instructions_[stages_[phase.stage].first]);
  const Rows& rows = step.rows;
  for (int row = begin; row < end; ++row) {
    const int slot = rows.slots[row];
    if (slot % kBlockSlots == kBlockSlots - 1) {
      row_.note_bounds(layers_[attend.layer],
                       (*rows.blocks)[rows.table_of(row)[slot / kBlockSlots]]);
    }
  }
}

// Heads that share keys share a selection. A bound counts relative to its head's highest, so that
// heads with large scores do not dominate; a block's rank is the best over the heads.
void Program::bound_candidates(const Step& step, const Phase& phase, int piece, int worker) const {
  const auto& attend = std::get<Attend>(instructions_[stages_[phase.stage].first]);
  const LayerCache& cache = layers_[attend.layer];
  const int heads = attend.heads, group = heads / cache.key_heads;
  const int padded = cache.padded_key_size();
  const std::vector<Tile>& tiles = step.tiles.at(group);
  float* queries = step.context.own[worker].bound_queries.get();
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const Tile& tile = tiles[i];
    if (tile.all_blocks == nullptr) continue;
    const float* from = at(step, attend.queries, tile.first_row);
    for (int head = 0; head < heads; ++head) {
      float* to = queries + static_cast<std::size_t>(head) * padded;
      for (int k = 0; k < cache.key_size; ++k)
        to[k] = from[head * cache.key_size + k] * attend.options.scale;
      std::fill(to + cache.key_size, to + padded, 0.0F);
    }
    const auto [begin, end] = share(tile.newest - kNewestBlocks, piece, phase.pieces);
    for (int candidate = begin; candidate < end; ++candidate) {
      const unsigned char* block = (*step.rows.blocks)[tile.all_blocks[candidate + 1]];
      for (int key_head = 0; key_head < cache.key_heads; ++key_head) {
        const int first = key_head * group;
        float* bounds = step.context.bounds.get() + (i * heads + first) * step.most_candidates;
        row_.bound(cache, key_head, block, queries + static_cast<std::size_t>(first) * padded,
                   group, bounds + candidate, step.most_candidates);
      }
    }
  }
}

void Program::choose_blocks(const Step& step, const Phase& phase, int pair, int worker) const {
  const auto& attend = std::get<Attend>(instructions_[stages_[phase.stage].first]);
  const LayerCache& cache = layers_[attend.layer];
  const int heads = attend.heads, group = heads / cache.key_heads;
  const std::size_t tile_index = pair / cache.key_heads;
  const Tile& tile = step.tiles.at(group)[tile_index];
  if (tile.all_blocks == nullptr) return;
  const int key_head = pair % cache.key_heads, candidates = tile.newest - kNewestBlocks;
  float* ranks = step.context.own[worker].ranks.get();
  std::fill(ranks, ranks + candidates, -kInfinity);
  for (int g = 0; g < group; ++g) {
    const float* bounds = step.context.bounds.get() +
                          (tile_index * heads + key_head * group + g) * step.most_candidates;
    const float highest = *std::max_element(bounds, bounds + candidates);
    for (int c = 0; c < candidates; ++c) {
      const float rank = bounds[c] == highest ? 0 : bounds[c] - highest;
      ranks[c] = std::max(ranks[c], rank);
    }
  }
  const std::size_t offset = tile.blocks - step.chosen_blocks.get();
  std::int32_t* chosen = step.chosen_blocks.get() + offset + key_head * tile.blocks_of_head;
  const int free = selection_.blocks - 1 - kNewestBlocks;
  choose(ranks, candidates, free, ranks + step.most_candidates, chosen + 1);
  chosen[0] = tile.all_blocks[0];
  for (int k = 1; k <= free; ++k)
    chosen[k] = tile.all_blocks[chosen[k] + 1];
  for (int k = 0; k < kNewestBlocks; ++k)
    chosen[1 + free + k] = tile.all_blocks[tile.newest + 1 - kNewestBlocks + k];
}

}  // namespace npu::ops::kernel_programs
