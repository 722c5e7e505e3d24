// Formats drained ops as lines of Chrome trace JSON outside of Python, so that the program does not
// wait for the GIL. op_recorder.h records.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "npu/export.h"
#include "observe/op_recorder.h"

namespace npu::observe {

// Total time of all calls of an op.
struct OpTotal {
  std::int64_t calls = 0;
  std::int64_t self_ns = 0;
  std::int64_t total_ns = 0;  // inside a recursive call
};

// Formats chunks of one recording, one after the other.
class NPU_API OpWriter {
 public:
  // Times are written relative to `base_ns`.
  OpWriter(std::int64_t pid, std::int64_t base_ns) : pid_(pid), base_ns_(base_ns) {}

  // The events of a chunk, each after ",\n", with the arrows from forward to backward.
  std::string write(const DrainedOps& ops);

  // Since the last call.
  std::unordered_map<const std::string*, OpTotal> take_totals();

 private:
  struct Place {
    std::int64_t thread_id;
    std::int64_t time_ns;
  };
  struct Waiting {
    std::uint64_t thread;
    std::int64_t sequence;
    Place at;
    bool has_waited;
  };

  void write_op(const OpRecord& record, std::int64_t thread_id, std::string& to);
  void note_forward(const OpRecord& record, const ThreadOps& on);
  void write_flows(std::vector<Waiting> backward, std::string& to);
  const std::string& quoted(const std::string* name);

  std::int64_t pid_;
  std::int64_t base_ns_;
  std::int64_t flows_ = 0;
  std::unordered_map<const std::string*, std::string> quoted_;
  std::unordered_map<const std::string*, OpTotal> totals_;
  std::unordered_map<std::uint64_t, std::unordered_map<std::int64_t, Place>> forward_;
  std::size_t forward_count_ = 0;
  std::vector<Waiting> waiting_;
};

}  // namespace npu::observe
