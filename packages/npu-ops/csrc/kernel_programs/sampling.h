// Samples a token from a row of scores.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_programs/row_kernels.h"

namespace npu::ops::kernel_programs {

// Sampling parameters; see npu_ops.kernel_programs.sampler.SamplingParams.
struct SamplingParams {
  double temperature;
  std::int64_t top_k;  // 0 for all
  double top_p, min_p;
  double point;  // from 0 to 1, exclusive
};

// Memory of a thread that samples, which only grows.
struct SamplingScratch {
  std::vector<float> weights, most;
  std::vector<double> sums;
  std::vector<std::int64_t> tokens;
};

// Returns a token; -1 if a score is NaN or +infinity, or all are -infinity.
std::int64_t sample(const RowKernels& kernels, const float* scores, std::int64_t width,
                    const SamplingParams& how, SamplingScratch& room);

}  // namespace npu::ops::kernel_programs
