#include "kernel_programs/sampling.h"

#include <algorithm>
#include <numeric>

namespace npu::ops::kernel_programs {
namespace {

// Minimum weights relative to the most likely token, tried in turn: sorting all 49,152 tokens takes
// milliseconds, finding those above one of these some microseconds. The last includes all.
constexpr double kFloors[] = {1e-2, 1e-3, 1e-4, 1e-5, 0.0};

// Index of `point` in a row of `count` weights with known sum, by cumulative weight; never one of
// weight 0.
template <typename Weight>
std::int64_t place_at(std::int64_t count, double sought, const Weight& weight) {
  std::int64_t last = 0;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (weight(i) > 0) last = i;
    sum += weight(i);
    if (sum > sought && weight(i) > 0) return i;
  }
  return last;  // rounding exceeded the end
}

// Samples from all tokens, in the order of ids.
std::int64_t sample_of_all(const SamplingScratch& room, std::int64_t width, double total,
                           double point) {
  double sought = point * total;
  const auto parts = static_cast<std::int64_t>(room.sums.size());
  std::int64_t part = place_at(parts, sought, [&](std::int64_t i) { return room.sums[i]; });
  for (std::int64_t i = 0; i < part; ++i)
    sought -= room.sums[i];
  const std::int64_t start = part * kWeighedPart;
  const float* weights = room.weights.data() + start;
  return start + place_at(std::min(kWeighedPart, width - start), sought,
                          [&](std::int64_t i) { return double{weights[i]}; });
}

// Finds the tokens with at least this weight, by id; returns their sum.
double find_above(SamplingScratch& room, std::int64_t width, double floor) {
  room.tokens.clear();
  double sum = 0;
  for (std::size_t part = 0; part < room.most.size(); ++part) {
    if (room.most[part] < floor) continue;
    const std::int64_t start = static_cast<std::int64_t>(part) * kWeighedPart;
    for (std::int64_t i = start; i < std::min(start + kWeighedPart, width); ++i) {
      if (room.weights[i] >= floor) {
        room.tokens.push_back(i);
        sum += room.weights[i];
      }
    }
  }
  return sum;
}

// Finds all tokens that may be sampled, and some more.
void find_likely(SamplingScratch& room, std::int64_t width, const SamplingParams& how,
                 double total) {
  for (const double floor : kFloors) {
    const double sum = find_above(room, width, floor);
    const bool is_enough = how.top_k > 0
                               ? static_cast<std::int64_t>(room.tokens.size()) >= how.top_k
                               : how.top_p < 1 && sum >= how.top_p * total;
    if (is_enough || floor <= how.min_p) break;
  }
}

}  // namespace

std::int64_t sample(const RowKernels& kernels, const float* scores, std::int64_t width,
                    const SamplingParams& how, SamplingScratch& room) {
  const std::int64_t parts = (width + kWeighedPart - 1) / kWeighedPart;
  room.weights.resize(width);
  room.sums.resize(parts);
  room.most.resize(parts);
  kernels.weigh(scores, width, static_cast<float>(how.temperature), room.weights.data(),
                room.sums.data(), room.most.data());
  double total = std::accumulate(room.sums.begin(), room.sums.end(), 0.0);
  if (!(total > 0)) return -1;
  if (how.top_k == 0 && how.top_p >= 1 && how.min_p == 0) {
    return sample_of_all(room, width, total, how.point);
  }
  find_likely(room, width, how, total);
  std::vector<std::int64_t>& tokens = room.tokens;
  const auto is_before = [&](std::int64_t left, std::int64_t right) {
    const float a = room.weights[left], b = room.weights[right];
    return a > b || (a == b && left < right);
  };
  const auto found = static_cast<std::int64_t>(tokens.size());
  const std::int64_t most = how.top_k > 0 ? std::min(how.top_k, found) : found;
  std::partial_sort(tokens.begin(), tokens.begin() + most, tokens.end(), is_before);
  const auto weight = [&](std::int64_t i) { return double{room.weights[tokens[i]]}; };
  if (how.top_k > 0) {
    total = 0;
    for (std::int64_t i = 0; i < most; ++i)
      total += weight(i);
  }
  std::int64_t kept = 0;
  double sum = 0;
  while (kept < most && (kept == 0 || (sum < how.top_p * total && weight(kept) >= how.min_p))) {
    sum += weight(kept++);
  }
  return tokens[place_at(kept, how.point * sum, weight)];
}

}  // namespace npu::ops::kernel_programs
