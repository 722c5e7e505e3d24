// Ops of torch on all threads, kept until they are drained: a recording that can be written while
// it runs, which torch's own profiler cannot do. What a drained piece looks like is op_json.h.
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
  std::int64_t self_ns;          // without what it called
  std::int64_t sequence;         // autograd's number; negative when there is none
  std::uint64_t forward_thread;  // torch's number of the thread, 0 unless it is a backward's
  OpKind kind;
  bool is_recursive;  // inside a call of the same name
};

struct ThreadOps {
  std::int64_t thread_id = 0;      // the operating system's
  std::uint64_t torch_thread = 0;  // torch's own number of it
  std::vector<OpRecord> records;   // in the order of their ends
};

struct DrainedOps {
  std::vector<ThreadOps> threads;
  std::uint64_t dropped = 0;  // that did not fit since the last drain
};

// Begins to record; a second call is a no-op.
NPU_API void start_ops();
// Ends it, and with it the annotations that the calling thread is in; ops that are under way are
// not recorded. What was recorded can still be drained.
NPU_API void stop_ops();
NPU_API DrainedOps drain_ops();

}  // namespace npu::observe
