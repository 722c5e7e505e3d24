// Idle execution contexts of a program.
#pragma once

#include <mutex>
#include <vector>

#include "npu/program.h"
#include "program/layer_samples.h"

namespace npu::program {

class RequestPool {
 public:
  // The request returned last, which is the warmest; empty if none is idle.
  Request take();

  void give_back(Request request);

  // Layers of the latest run among the idle requests.
  std::vector<LayerRecord> layers();

  // Counts every run of the program, including those of sessions.
  LayerSampler& layer_sampler() noexcept { return layer_sampler_; }

 private:
  std::mutex mutex_;
  std::vector<Request> idle_;
  LayerSampler layer_sampler_;
};

}  // namespace npu::program
