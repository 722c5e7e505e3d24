// Which runs report their layers to observers, and the report. Reading layers takes 0.14 to
// 0.33 ms (2026-11), so not every run does. The reading itself is layers.h.
#pragma once

#include <atomic>
#include <cstdint>

#include "npu/driver.h"
#include "npu/export.h"
#include "npu/observe.h"

namespace npu::program {

// From now on the first `first` runs of each program report, and then every `every`th; 0 for both
// ends it. Programs loaded without profiling have nothing to report.
NPU_API void set_layer_sampling(std::uint32_t first, std::uint32_t every) noexcept;

// Counts the runs of one program. Threads may share it.
class LayerSampler {
 public:
  // Whether the run that has just ended is one that reports.
  bool count_run() noexcept;

 private:
  std::atomic<std::uint32_t> plan_{0};
  std::atomic<std::uint64_t> runs_{0};
};

// Emits a span of category "layer" for each layer of the latest run of `request` that took time,
// one after the other from the run's start to its end at most: devices report durations and an
// order, but no times. "told_us" is the reported duration. To be called right after the run's own
// span, on the same thread. Never throws: a run does not fail because of who watches it.
//
// Before it stands a span of category "layer_shapes", of no length, where the driver knows what the
// layer read and wrote: "inputs" and "outputs", such as "f32[1,64] bf16[64,8]".
void tell_layers(const npu_program* program, npu_request* request,
                 const observe::Span& run) noexcept;

}  // namespace npu::program
