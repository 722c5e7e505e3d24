// Streams: in-order queues of device work, and the current stream of a thread.
//
// Host kernels (the fallback) run on the calling thread, and wait for pending work on their memory
// (host_access.h). Programs are enqueued. The driver implements the queue (driver.h).
#pragma once

#include <cstdint>

#include <c10/core/Stream.h>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu {

// Stream ids of a device: 0 is the default stream, followed by those of normal and of high
// priority, handed out round-robin. A block marks the streams that use it in 64 bits, which is the
// limit.
inline constexpr c10::StreamId kDefaultStream = 0;
inline constexpr c10::StreamId kNormalStreams = 32;
inline constexpr c10::StreamId kStreams = 64;

NPU_API c10::Stream default_stream(c10::DeviceIndex device_index = -1);
NPU_API c10::Stream current_stream(c10::DeviceIndex device_index = -1);

// A stream of normal priority (0) or of high priority (below 0).
NPU_API c10::Stream stream_from_pool(c10::DeviceIndex device_index = -1, int priority = 0);

// Makes a stream the thread's current one on its device; returns the previous one.
NPU_API c10::Stream exchange_stream(c10::Stream stream);

// True if no work of the stream is waiting or running.
NPU_API bool is_idle(c10::Stream stream);

// Waits for a stream. Throws the first error of its enqueued work since the last wait, once.
NPU_API void synchronize(c10::Stream stream);

// An event of torch: a point in a stream's order. Null pointers are events that were never
// recorded.
NPU_API void record_event(npu_event** event, c10::Stream stream);
NPU_API void wait_event(npu_event* event, c10::Stream stream);
NPU_API bool is_event_done(npu_event* event);
NPU_API void synchronize_event(npu_event* event);
NPU_API void destroy_event(npu_event* event) noexcept;
NPU_API double elapsed_ms(npu_event* start, npu_event* end);

// The stream of a device with the driver's stream at `native`. Throws Error [stream-external] if
// there is none: the runtime can only wait for its own streams.
NPU_API c10::Stream find_stream(c10::DeviceIndex device_index, std::uintptr_t native);

// The driver's stream, for vendors' code.
NPU_API npu_stream* native_stream(c10::Stream stream);

}  // namespace npu
