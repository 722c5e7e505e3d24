// Mixtures of experts: rows are grouped by the experts that they choose, and each expert's weights
// are read once for all of its rows.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernel_programs/program.h"
#include "kernel_programs/step_context.h"

namespace npu::ops::kernel_programs {
namespace {

// The greatest scores and what each expert's result counts; equal scores: the first, as in torch.
void choose(const float* scores, int count, const Experts& experts,
            std::vector<std::pair<int, float>>& chosen) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  // NaN counts as the greatest, as in torch, and makes the row's result NaN.
  const auto is_before = [&](int a, int b) {
    const bool a_nan = std::isnan(scores[a]), b_nan = std::isnan(scores[b]);
    if (a_nan || b_nan) return a_nan != b_nan ? a_nan : a < b;
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + experts.chosen, order.end(), is_before);
  const float top = scores[order[0]];
  float total = 0;
  if (experts.shares == Shares::softmax) {
    for (int i = 0; i < count; ++i)
      total += std::exp(scores[i] - top);
  } else {
    for (int i = 0; i < experts.chosen; ++i)
      total += std::exp(scores[order[i]] - top);
  }
  chosen.clear();
  for (int i = 0; i < experts.chosen; ++i) {
    const float score = scores[order[i]];
    const float part = experts.shares == Shares::sigmoid ? 1 / (1 + std::exp(-score))
                                                         : std::exp(score - top) / total;
    chosen.emplace_back(order[i], part);
  }
}

// The clamped form of gate and up, whose blocks of 16 alternate; written to `inner`.
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

void Program::run_experts(Context& step, const Experts& experts, int rows, Barrier& barrier,
                          int worker) const {
  const int count = static_cast<int>(experts.gate_up.size());
  const bool is_clamped = experts.limit > 0;
  {
    const auto [begin, end] = share(rows, worker, barrier.workers);
    for (int row = begin; row < end; ++row) {
      choose(at(step, experts.scores, row), count, experts, step.chosen[row]);
    }
  }
  barrier.wait();
  struct Entry {
    int row;
    float part;
  };
  std::vector<std::vector<Entry>> of_expert(count);
  for (int row = 0; row < rows; ++row) {
    for (const auto& [expert, part] : step.chosen[row])
      of_expert[expert].push_back({row, part});
  }
  std::vector<int> first_entry(count + 1, 0);
  for (int i = 0; i < count; ++i) {
    first_entry[i + 1] = first_entry[i] + static_cast<int>(of_expert[i].size());
  }
  const PackedLinear& up = experts.gate_up.front();
  const PackedLinear& down = experts.down.front();
  const std::size_t value_stride = rounded(up.outputs, 16);
  const auto for_my_entries = [&](auto work) {
    const auto [begin, end] = share(first_entry[count], worker, barrier.workers);
    for (int expert = 0; expert < count; ++expert) {
      for (int e = std::max(begin, first_entry[expert]); e < std::min(end, first_entry[expert + 1]);
           ++e) {
        work(e, of_expert[expert][e - first_entry[expert]].row);
      }
    }
  };
  for_my_entries([&](int entry, int row) {
    prepare(linear_, up, at(step, experts.input, row), step.expert_inputs, entry);
  });
  barrier.wait();
  for (int expert = 0; expert < count; ++expert) {
    if (of_expert[expert].empty()) continue;
    const auto [begin, end] = share(up.blocks() / 2, worker, barrier.workers);
    if (begin == end) continue;
    const float* bias = experts.gate_up_bias.empty() ? nullptr : experts.gate_up_bias[expert];
    const Finish finish{.bias = bias,
                        .activation = is_clamped ? Activation::none : experts.activation,
                        .gated = !is_clamped};
    linear_.linear(experts.gate_up[expert],
                   activations(step.expert_inputs, up.inputs, first_entry[expert]),
                   static_cast<int>(of_expert[expert].size()),
                   step.expert_values.get() + first_entry[expert] * value_stride, value_stride,
                   begin * 2, end * 2, finish);
  }
  barrier.wait();
  for_my_entries([&](int entry, int) {
    float* values = step.expert_values.get() + entry * value_stride;
    if (is_clamped) clamped_product(values, down.inputs, experts.limit, values);
    prepare(linear_, down, values, step.expert_inner, entry);
  });
  barrier.wait();
  const auto [begin, end] = share(down.blocks(), worker, barrier.workers);
  if (begin == end) return;
  const int first = begin * 16, last = std::min(end * 16, down.outputs);
  for (int row = 0; row < rows; ++row) {
    float* out = at(step, experts.out, row);
    if (experts.residual.buffer >= 0) {
      const float* residual = at(step, experts.residual, row);
      if (residual != out) std::copy(residual + first, residual + last, out + first);
    } else {
      std::fill(out + first, out + last, 0.0F);
    }
  }
  const std::size_t stride = rounded(down.outputs, 16);
  float* results = step.own[worker].expert.get();
  for (int expert = 0; expert < count; ++expert) {
    const auto& entries = of_expert[expert];
    if (entries.empty()) continue;
    const float* bias = experts.down_bias.empty() ? nullptr : experts.down_bias[expert];
    linear_.linear(experts.down[expert],
                   activations(step.expert_inner, down.inputs, first_entry[expert]),
                   static_cast<int>(entries.size()), results, stride, begin, end, {.bias = bias});
    for (std::size_t i = 0; i < entries.size(); ++i) {
      float* out = at(step, experts.out, entries[i].row);
      const float* result = results + i * stride;
      for (int column = first; column < last; ++column)
        out[column] += entries[i].part * result[column];
    }
  }
}

}  // namespace npu::ops::kernel_programs
