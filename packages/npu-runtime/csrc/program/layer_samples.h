// Sampling of runs that report their layers to observers. Reading layers takes 0.14 to 0.33 ms
// (2026-11), so not every run does. layers.h reads them.
#pragma once

#include <atomic>
#include <cstdint>

#include "npu/driver.h"
#include "npu/export.h"
#include "npu/observe.h"

namespace npu::program {

// From now on, the first `first` runs of each program report, and then every `every`th; 0 for both
// stops it. Programs loaded without profiling cannot report.
NPU_API void set_layer_sampling(std::uint32_t first, std::uint32_t every) noexcept;

// Counts the runs of one program. Threads may share it.
class LayerSampler {
 public:
  // Whether the run that has just ended reports.
  bool count_run() noexcept;

 private:
  std::atomic<std::uint32_t> plan_{0};
  std::atomic<std::uint64_t> runs_{0};
};

// Emits a span of category "layer" for each layer of the latest run of `request` that took time,
// one after the other from the run's start to its end at most: devices report durations and an
// order, but no times. "told_us" is the reported duration. Call it right after the run's span, on
// the same thread. Never throws: observers must not make a run fail.
//
// If the driver knows the layer's inputs and outputs, an empty span of category "layer_shapes"
// comes before it, with "inputs" and "outputs" such as "f32[1,64] bf16[64,8]".
void tell_layers(const npu_program* program, npu_request* request,
                 const observe::Span& run) noexcept;

}  // namespace npu::program
