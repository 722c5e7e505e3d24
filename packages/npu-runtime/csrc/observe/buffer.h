// What was emitted, as plain records, until a listener takes it: one list for Python and one for
// torch's profiler. What events mean is npu/observe.h.
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

// The listeners there are, as bits of detail::listeners.
enum Listener : unsigned { kPython = 1, kKineto = 2 };

struct RecordArg {
  const char* key;
  Arg::Kind kind;
  std::int64_t value;
  const std::string* text;  // interned; set for kText
};

// Fixed in size and free of owners, so that emitting allocates nothing. Strings are interned.
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
  std::int64_t thread_id;  // where it was done
  double value;
  Origin origin;  // the same thread unless it was enqueued
  std::array<RecordArg, kMostArgs> args;
};

// Records in the order of their arrival, in pieces, so that growing moves nothing.
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
  // Counts what does not fit: a listener that never drains must not fill the memory.
  void push(const Record& record);

  RecordList records;
  std::size_t dropped = 0;  // records that did not fit since the last drain
};

// Begins to keep records for a listener, or ends it and forgets what it has not taken.
NPU_API void set_listening(Listener listener, bool is_on);
// Whether Python's listeners want kernels; torch's profiler always does.
NPU_API void set_kernels_wanted(bool is_wanted);
NPU_API Drained drain(Listener listener);

// Runs `body` with the lock and the records for Python, or with nullptr where nobody listens there.
void with_python_records(c10::function_ref<void(Drained*)> body);

}  // namespace npu::observe
