// Execution contexts that wait for the next run of their program.
#pragma once

#include <mutex>
#include <vector>

#include "npu/program.h"
#include "program/layer_samples.h"

namespace npu::program {

class RequestPool {
 public:
  // The request that came back last, which is the warmest; empty when none waits.
  Request take();

  void give_back(Request request);

  // Layers of the latest run among the requests that wait.
  std::vector<LayerRecord> layers();

  // Counts every run of the program, also those on a session's request.
  LayerSampler& layer_sampler() noexcept { return layer_sampler_; }

 private:
  std::mutex mutex_;
  std::vector<Request> idle_;
  LayerSampler layer_sampler_;
};

}  // namespace npu::program
