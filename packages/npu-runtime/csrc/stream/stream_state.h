// A stream of the runtime: the driver's queue, pending work and errors.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Stream.h>

#include "npu/allocator.h"
#include "npu/driver.h"
#include "npu/error.h"
#include "npu/export.h"

namespace npu::stream {

class StreamState {
 public:
  StreamState(c10::DeviceIndex device_index, c10::StreamId id);

  c10::DeviceIndex device_index() const noexcept { return device_index_; }
  std::uint64_t bit() const noexcept { return std::uint64_t{1} << static_cast<unsigned>(id_); }
  c10::StreamId id() const noexcept { return id_; }

  // The driver's stream, created at first use.
  npu_stream* native();

  // The same, but nullptr before that.
  npu_stream* native_if_made() const noexcept { return native_.load(std::memory_order_acquire); }

  // Whether nothing is pending; does not create the driver's stream.
  bool is_idle();

  // Waits without reporting errors.
  void drain();

  // Throws the first error since the last call, if any.
  void raise_error();

  // The earliest start of work enqueued at `queued_ns` and ended now: not before the end of the
  // previous work. Called in the stream's order.
  std::int64_t note_end(std::int64_t queued_ns, std::int64_t end_ns) noexcept;

  void keep_error(ErrorKind kind, const char* code, std::string text);

 private:
  const c10::DeviceIndex device_index_;
  const c10::StreamId id_;
  std::mutex mutex_;
  std::atomic<npu_stream*> native_{nullptr};
  std::atomic<std::int64_t> last_end_ns_{0};
  std::atomic<bool> has_error_{false};
  std::string error_;
  ErrorKind error_kind_ = ErrorKind::kProgram;
  const char* error_code_ = "";
};

// A stream of a device. Precondition: the id is in [0, kStreams).
StreamState& state_of(c10::Stream stream);
StreamState& state_of(c10::DeviceIndex device_index, c10::StreamId id);

// Enqueued work that is not done: its memory stays alive and marked until the driver reports its
// end.
class PendingWork {
 public:
  // Marks the blocks.
  PendingWork(StreamState& stream, std::vector<Block*> blocks);
  PendingWork(const PendingWork&) = delete;
  PendingWork& operator=(const PendingWork&) = delete;
  virtual ~PendingWork() = default;

  // For the driver: a function and its context. A successful enqueue passes ownership.
  static void done(void* context, npu_status status, const char* message);

  // The work could not be enqueued.
  void cancel();

 protected:
  StreamState& stream() const noexcept { return stream_; }

 private:
  // Description of the failed work, for an error's text.
  virtual std::string describe() const = 0;
  // The work has ended; called once, on a thread of the driver, before the blocks are released. An
  // error stored by it is more specific than the driver's, and takes precedence.
  virtual void on_end(npu_status status) = 0;

  void release();

  StreamState& stream_;
  std::vector<Block*> blocks_;
};

// Waits for all used streams of a device; errors remain for the next caller that checks.
NPU_API void drain_device(c10::DeviceIndex device_index);

// The same, and throws the first error.
void synchronize_device(c10::DeviceIndex device_index);

}  // namespace npu::stream
