// Mixtures of experts: rows are grouped by expert, and each expert's weights are read once for all
// of its rows.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernel_programs/program.h"
#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

// The highest scores and the weight of each expert's result; ties go to the first, as in torch.
void choose(const float* scores, int count, const Experts& experts, int* order,
            ExpertGroups::Entry* chosen) {
  std::iota(order, order + count, 0);
  // NaN counts as the greatest, as in torch, and makes the row's result NaN.
  const auto is_before = [&](int a, int b) {
    const bool a_nan = std::isnan(scores[a]), b_nan = std::isnan(scores[b]);
    if (a_nan || b_nan) return a_nan != b_nan ? a_nan : a < b;
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::partial_sort(order, order + experts.chosen, order + count, is_before);
  const float top = scores[order[0]];
  float total = 0;
  if (experts.shares == Shares::softmax) {
    for (int i = 0; i < count; ++i)
      total += std::exp(scores[i] - top);
  } else {
    for (int i = 0; i < experts.chosen; ++i)
      total += std::exp(scores[order[i]] - top);
  }
  for (int i = 0; i < experts.chosen; ++i) {
    const float score = scores[order[i]];
    const float part = experts.shares == Shares::sigmoid ? 1 / (1 + std::exp(-score))
                                                         : std::exp(score - top) / total;
    chosen[i] = {order[i], part};
  }
}

// The clamped form of gate and up, interleaved in blocks of 16; written to `inner`.
void clamped_product(const float* both, int width, float limit, float* inner) {
  for (int i = 0; i < width; ++i) {
    const int place = i / 16 * 32 + i % 16;
    const float gate = both[place] > limit ? limit : both[place];
    const float up = both[place + 16] > limit    ? limit
                     : both[place + 16] < -limit ? -limit
                                                 : both[place + 16];
    inner[i] = gate / (1 + std::exp(-1.702F * gate)) * (up + 1);
  }
}

}  // namespace

void Program::plan_experts(Step& step, int stage, int rows, int workers) const {
  const auto& experts = std::get<Experts>(instructions_[stages_[stage].first]);
  const PackedLinear &up = experts.gate_up.front(), &down = experts.down.front();
  const int entries = rows * experts.chosen;
  ExpertGroups& groups = step.groups[stage];
  groups.chosen.resize(entries);
  groups.entries.resize(entries);
  groups.first.resize(experts.gate_up.size() + 1);
  const auto few = [&](int count) { return std::min(count, kTasksPerWorker * workers); };
  const auto add = [&](Phase::Kind kind, int count, int pieces, bool is_repeatable) {
    step.add({kind, stage, stage + 1, count, pieces}, is_repeatable);
  };
  // A piece has some columns of all experts' results, which stay in a near cache.
  const auto pieces_of = [&](int count, int columns) {
    const auto wanted = std::max<std::size_t>(
        kTasksPerWorker * workers, std::size_t(entries) * count * columns / kResultsOfPiece);
    const int pieces = std::min<std::size_t>(count, wanted);
    const std::size_t most = std::size_t((count + pieces - 1) / pieces) * columns;
    step.result_floats = std::max(step.result_floats, std::max(rows, entries) * most);
    step.expert_floats = std::max(step.expert_floats, rows * most);
    return pieces;
  };
  const int pairs = up.blocks() / 2, blocks = down.blocks();
  add(Phase::Kind::choose, rows, few(rows), false);
  add(Phase::Kind::group, 1, 1, false);
  add(Phase::Kind::expert_inputs, entries, few(entries), false);
  add(Phase::Kind::expert_up, pairs, pieces_of(pairs, 2 * kBlockOutputs), true);
  add(Phase::Kind::expert_inner, entries, few(entries), false);
  add(Phase::Kind::expert_down, blocks, pieces_of(blocks, kBlockOutputs), true);
}

void Program::choose_experts(Step& step, const Phase& phase, int begin, int end, int worker) const {
  const auto& experts = std::get<Experts>(instructions_[stages_[phase.stage].first]);
  ExpertGroups::Entry* chosen = step.groups[phase.stage].chosen.data();
  for (int row = begin; row < end; ++row) {
    choose(at(step, experts.scores, row), static_cast<int>(experts.gate_up.size()), experts,
           step.context.own[worker].order.get(), chosen + std::size_t(row) * experts.chosen);
  }
}

void Program::group_rows(Step& step, const Phase& phase) const {
  const auto& experts = std::get<Experts>(instructions_[stages_[phase.stage].first]);
  auto& [chosen, entries, first] = step.groups[phase.stage];
  std::fill(first.begin(), first.end(), 0);
  for (const auto& [expert, part] : chosen)
    ++first[expert + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  // Each expert's offset advances to the next expert's while its entries are written.
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    entries[first[chosen[i].index]++] = {static_cast<int>(i) / experts.chosen, chosen[i].part};
  }
  std::copy_backward(first.begin(), first.end() - 1, first.end());
  first[0] = 0;
}

void Program::prepare_entries(const Step& step, const Phase& phase, int begin, int end) const {
  const auto& experts = std::get<Experts>(instructions_[stages_[phase.stage].first]);
  const PackedLinear &up = experts.gate_up.front(), &down = experts.down.front();
  Context& all = step.context;
  for (int entry = begin; entry < end; ++entry) {
    if (phase.kind == Phase::Kind::expert_inputs) {
      const int row = step.groups[phase.stage].entries[entry].index;
      prepare(linear_, up, at(step, experts.input, row), all.expert_inputs, entry);
      continue;
    }
    float* values = all.expert_values.get() + entry * rounded(up.outputs, 16);
    if (experts.limit > 0) clamped_product(values, down.inputs, experts.limit, values);
    prepare(linear_, down, values, all.expert_inner, entry);
  }
}

void Program::multiply_up(const Step& step, const Phase& phase, int begin, int end,
                          int worker) const {
  const auto& experts = std::get<Experts>(instructions_[stages_[phase.stage].first]);
  const ExpertGroups& groups = step.groups[phase.stage];
  const PackedLinear& up = experts.gate_up.front();
  const bool is_clamped = experts.limit > 0;
  const int per_pair = is_clamped ? 2 * kBlockOutputs : kBlockOutputs;
  const std::size_t column = std::size_t(begin) * per_pair, width = (end - begin) * per_pair;
  ThreadScratch& own = step.context.own[worker];
  for (int expert = 0; expert < static_cast<int>(experts.gate_up.size()); ++expert) {
    const int first = groups.first[expert], count = groups.first[expert + 1] - first;
    if (count == 0) continue;
    const Finish finish{
        .bias = experts.gate_up_bias.empty() ? nullptr : experts.gate_up_bias[expert],
        .activation = is_clamped ? Activation::none : experts.activation,
        .gated = !is_clamped};
    linear_.linear(experts.gate_up[expert],
                   activations(step.context.expert_inputs, up.inputs, first), count,
                   own.results.get() + first * width - column, width, begin * 2, end * 2, finish);
  }
  const std::size_t stride = rounded(up.outputs, 16);
  own.result = {.to = step.context.expert_values.get() + column,
                .to_stride = stride,
                .stride = width,
                .rows = static_cast<int>(groups.entries.size()),
                .width = static_cast<int>(std::min(width, stride - column))};
}

void Program::multiply_down(const Step& step, const Phase& phase, int begin, int end,
                            int worker) const {
  const auto& experts = std::get<Experts>(instructions_[stages_[phase.stage].first]);
  const ExpertGroups& groups = step.groups[phase.stage];
  const PackedLinear& down = experts.down.front();
  const int rows = static_cast<int>(groups.entries.size()) / experts.chosen;
  const int column = begin * kBlockOutputs;
  const std::size_t stride = std::size_t(end - begin) * kBlockOutputs;
  const int width = std::min(end * kBlockOutputs, down.outputs) - column;
  ThreadScratch& own = step.context.own[worker];
  float *total = own.results.get(), *product = own.expert.get();
  for (int row = 0; row < rows; ++row) {
    if (experts.residual.buffer >= 0) {
      const float* residual = at(step, experts.residual, row) + column;
      std::copy(residual, residual + width, total + row * stride);
    } else {
      std::fill_n(total + row * stride, width, 0.0F);
    }
  }
  for (int expert = 0; expert < static_cast<int>(experts.down.size()); ++expert) {
    const int first = groups.first[expert], count = groups.first[expert + 1] - first;
    if (count == 0) continue;
    const float* bias = experts.down_bias.empty() ? nullptr : experts.down_bias[expert];
    linear_.linear(experts.down[expert], activations(step.context.expert_inner, down.inputs, first),
                   count, product - column, stride, begin, end, {.bias = bias});
    for (int i = 0; i < count; ++i) {
      const auto [row, part] = groups.entries[first + i];
      for (int j = 0; j < width; ++j)
        total[row * stride + j] += part * product[i * stride + j];
    }
  }
  own.result = {.to = at(step, experts.out, 0) + column,
                .to_stride = static_cast<std::size_t>(strides_[experts.out.buffer]),
                .stride = stride,
                .rows = rows,
                .width = width};
}

}  // namespace npu::ops::kernel_programs
