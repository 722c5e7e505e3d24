// Emitted events as plain records, until a listener takes them: one list for Python and one for
// torch's profiler. npu/observe.h documents events.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "npu/export.h"
#include "npu/observe.h"

namespace npu::observe {

// The active listeners, as bits of detail::listeners.
enum Listener : unsigned { kPython = 1, kKineto = 2 };

struct RecordArg {
  const char* key;
  Arg::Kind kind;
  std::int64_t value;
  const std::string* text;  // interned; set for kText
};

// Of fixed size and without owners, so that emitting does not allocate. Strings are interned.
struct Record {
  bool is_span;  // otherwise a counter
  bool is_enqueued;
  std::uint8_t arg_count;
  c10::DeviceIndex device_index;
  std::int16_t stream;
  const std::string* category;
  const std::string* name;
  std::int64_t start_ns;
  std::int64_t duration_ns;
  std::int64_t thread_id;  // thread of the work
  double value;
  Origin origin;  // the same thread unless it was enqueued
  std::array<RecordArg, kMostArgs> args;
};

// Records in order of arrival, in chunks, so that growing does not move them.
class RecordList {
 public:
  void push(const Record& record);
  std::size_t size() const noexcept { return size_; }

  template <typename Visitor>
  void each(Visitor&& visit) const {
    for (const std::vector<Record>& piece : pieces_) {
      for (const Record& record : piece)
        visit(record);
    }
  }

 private:
  std::vector<std::vector<Record>> pieces_;
  std::size_t size_ = 0;
};

struct Drained {
  // Counts overflow: a listener that never drains must not fill the memory.
  void push(const Record& record);

  RecordList records;
  std::size_t dropped = 0;  // records dropped since the last drain
};

// Starts keeping records for a listener, or stops and drops those not taken.
NPU_API void set_listening(Listener listener, bool is_on);
// Whether Python's listeners want kernels; torch's profiler always does.
NPU_API void set_kernels_wanted(bool is_wanted);
NPU_API Drained drain(Listener listener);

// Runs `body` with the lock and the records for Python, or with nullptr without a listener.
void with_python_records(c10::function_ref<void(Drained*)> body);

}  // namespace npu::observe
