// Records torch's ops on all threads until they are drained: unlike torch's own profiler, it can
// write while it records. op_json.h formats drained chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "npu/export.h"

namespace npu::observe {

enum class OpKind : std::uint8_t { kOp, kBackward, kAnnotation };

// A finished op. Names are interned.
struct OpRecord {
  const std::string* name;
  std::int64_t start_ns;
  std::int64_t duration_ns;
  std::int64_t self_ns;          // without the ops that it called
  std::int64_t sequence;         // autograd's number, or negative
  std::uint64_t forward_thread;  // torch's number of the thread, 0 unless in a backward
  OpKind kind;
  bool is_recursive;  // inside a call of the same name
};

struct ThreadOps {
  std::int64_t thread_id = 0;      // of the operating system
  std::uint64_t torch_thread = 0;  // torch's own number of it
  std::vector<OpRecord> records;   // in order of end
};

struct DrainedOps {
  std::vector<ThreadOps> threads;
  std::uint64_t dropped = 0;  // dropped since the last drain
};

// Starts recording; a second call is a no-op.
NPU_API void start_ops();
// Stops recording and ends the calling thread's open annotations; running ops are not recorded.
// Recorded ops can still be drained.
NPU_API void stop_ops();
NPU_API DrainedOps drain_ops();

}  // namespace npu::observe
