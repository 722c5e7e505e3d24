// The sampling plan of the process, and the spans of layers.
#include "program/layer_samples.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "npu/error.h"
#include "program/layers.h"

namespace npu::program {

namespace {

// A new plan has a new number, so that counters restart; 0 means none.
struct Plan {
  std::atomic<std::uint32_t> number{0};
  std::atomic<std::uint32_t> latest{0};
  std::atomic<std::uint32_t> first{0};
  std::atomic<std::uint32_t> every{0};
};

Plan plan;

}  // namespace

void set_layer_sampling(std::uint32_t first, std::uint32_t every) noexcept {
  plan.number.store(0, std::memory_order_relaxed);
  if (first == 0 && every == 0) return;
  plan.first.store(first, std::memory_order_relaxed);
  plan.every.store(every, std::memory_order_relaxed);
  const std::uint32_t next = plan.latest.fetch_add(1, std::memory_order_relaxed) + 1;
  plan.number.store(next, std::memory_order_release);
}

bool LayerSampler::count_run() noexcept {
  const std::uint32_t number = plan.number.load(std::memory_order_acquire);
  if (number == 0) return false;
  if (plan_.exchange(number, std::memory_order_relaxed) != number) {
    runs_.store(0, std::memory_order_relaxed);
  }
  const std::uint64_t earlier = runs_.fetch_add(1, std::memory_order_relaxed);
  const std::uint32_t first = plan.first.load(std::memory_order_relaxed);
  if (earlier < first) return true;
  const std::uint32_t every = plan.every.load(std::memory_order_relaxed);
  return every != 0 && (earlier - first + 1) % every == 0;
}

void tell_layers(const npu_program* program, npu_request* request,
                 const observe::Span& run) noexcept {
  std::vector<LayerRecord> layers;
  std::unordered_map<std::string, LayerShapes> shapes;
  try {
    layers = read_layers(request);
    if (!layers.empty()) shapes = read_layer_shapes(program);
  } catch (const Error&) {
    return;
  }
  std::int64_t sum_ns = 0;
  for (const LayerRecord& layer : layers)
    sum_ns += std::max<std::int64_t>(layer.duration_us, 0) * 1000;
  // Some devices report means of several runs, which may be longer than this run.
  const double scale = std::min(1.0, static_cast<double>(run.end_ns - run.start_ns) /
                                         static_cast<double>(std::max<std::int64_t>(sum_ns, 1)));
  std::int64_t earlier_ns = 0;
  const auto at = [&] {
    return run.start_ns + static_cast<std::int64_t>(static_cast<double>(earlier_ns) * scale);
  };
  for (const LayerRecord& layer : layers) {
    if (layer.duration_us <= 0) continue;
    const std::int64_t start_ns = at();
    earlier_ns += layer.duration_us * 1000;
    if (const auto known = shapes.find(layer.name); known != shapes.end()) {
      observe::emit_span({.category = "layer_shapes",
                          .name = layer.name,
                          .start_ns = start_ns,
                          .end_ns = start_ns,
                          .device_index = run.device_index,
                          .stream = run.stream,
                          .origin = run.origin},
                         {observe::Arg::text("inputs", known->second.inputs),
                          observe::Arg::text("outputs", known->second.outputs)});
    }
    observe::emit_span({.category = "layer",
                        .name = layer.name,
                        .start_ns = start_ns,
                        .end_ns = at(),
                        .device_index = run.device_index,
                        .stream = run.stream,
                        .origin = run.origin},
                       {observe::Arg::text("type", layer.type),
                        observe::Arg::text("implementation", layer.implementation),
                        observe::Arg::number("told_us", layer.duration_us)});
  }
}

}  // namespace npu::program
