// What the Python side takes out of the buffer of native events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "npu/export.h"

namespace npu::observe {

struct NativeEvent {
  bool is_span;  // otherwise a counter
  std::string category;
  std::string name;
  std::int64_t start_ns;
  std::int64_t duration_ns;
  std::int64_t thread_id;
  double value;
  std::string args_json;
};

struct Drained {
  std::vector<NativeEvent> events;
  std::size_t dropped;  // events that did not fit since the last drain
};

NPU_API Drained drain();
NPU_API void set_listener_count(int count) noexcept;

}  // namespace npu::observe
