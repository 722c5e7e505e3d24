// A stream's pending work and errors, and host access to blocks.
#include "stream/stream_state.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

#include "driver/device_selection.h"
#include "memory/free_block.h"
#include "npu/error.h"
#include "npu/host_access.h"
#include "npu/observe.h"
#include "npu/process.h"
#include "npu/stream.h"
#include "npu/sync_debug.h"
#include "stream/sanitizer.h"

namespace npu {

namespace detail {
std::atomic<int> host_access_level{0};
}  // namespace detail

namespace stream {

StreamState::StreamState(c10::DeviceIndex device_index, c10::StreamId id)
    : device_index_(device_index), id_(id) {}

npu_stream* StreamState::native() {
  check_process();
  npu_stream* made = native_.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  const std::lock_guard lock(mutex_);
  made = native_.load(std::memory_order_relaxed);
  if (made != nullptr) return made;
  mark_device_used();
  const std::int32_t priority = id_ >= kNormalStreams ? -1 : 0;
  driver::check_call(driver::table().stream_create(device_index_, priority, &made),
                     "stream_create");
  native_.store(made, std::memory_order_release);
  return made;
}

bool StreamState::is_idle() {
  check_process();
  npu_stream* made = native_.load(std::memory_order_acquire);
  if (made == nullptr) return true;
  std::int32_t idle = 0;
  driver::check_call(driver::table().stream_query(made, &idle), "stream_query");
  return idle != 0;
}

void StreamState::drain() {
  check_process();  // the threads that would do the work belong to the parent
  npu_stream* made = native_.load(std::memory_order_acquire);
  if (made == nullptr) return;
  driver::check_call(driver::table().stream_synchronize(made), "stream_synchronize");
}

std::int64_t StreamState::note_end(std::int64_t queued_ns, std::int64_t end_ns) noexcept {
  return std::max(queued_ns, last_end_ns_.exchange(end_ns));
}

void StreamState::keep_error(ErrorKind kind, const char* code, std::string text) {
  const std::lock_guard lock(mutex_);
  if (has_error_.load(std::memory_order_relaxed)) return;
  error_ = std::move(text);
  error_kind_ = kind;
  error_code_ = code;
  // Host code that reads the results must not take the fast path past this.
  detail::host_access_level.fetch_add(1, std::memory_order_acq_rel);
  has_error_.store(true, std::memory_order_release);
}

void StreamState::raise_error() {
  if (!has_error_.load(std::memory_order_acquire)) return;
  std::string text;
  ErrorKind kind{};
  const char* code = "";
  {
    const std::lock_guard lock(mutex_);
    if (!has_error_.exchange(false)) return;
    text = std::exchange(error_, {});
    kind = error_kind_;
    code = error_code_;
    detail::host_access_level.fetch_sub(1, std::memory_order_acq_rel);
  }
  throw Error(kind, code,
              text + " It was enqueued earlier; set NPU_LAUNCH_BLOCKING=1 to see where.");
}

PendingWork::PendingWork(StreamState& stream, std::vector<Block*> blocks)
    : stream_(stream), blocks_(std::move(blocks)) {
  for (Block* block : blocks_) {
    block->users.fetch_add(1, std::memory_order_acq_rel);
    block->streams.fetch_or(stream.bit(), std::memory_order_acq_rel);
  }
  detail::host_access_level.fetch_add(1, std::memory_order_acq_rel);
}

void PendingWork::done(void* context, npu_status status, const char* message) {
  auto* work = static_cast<PendingWork*>(context);
  // The text belongs to the driver, and may not outlive calls in on_end.
  const std::string failure = status == NPU_OK ? "" : work->describe() + ": " + message + ".";
  work->on_end(status);
  if (status != NPU_OK) work->stream_.keep_error(ErrorKind::kProgram, "program-run", failure);
  work->release();
  delete work;
}

void PendingWork::cancel() {
  release();
}

void PendingWork::release() {
  for (Block* block : blocks_)
    memory::drop_user(block);
  detail::host_access_level.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace stream

namespace {

// Waits for pending work on a block.
void wait_for_users(const Block& block) {
  const observe::ScopedSpan span("sync", "host access", block.device_index);
  // The owner is one user; any more are pending work. Only code that uses the block concurrently
  // without waiting can add work, which is a race.
  while (block.users.load(std::memory_order_acquire) > 1) {
    const std::uint64_t streams = block.streams.load(std::memory_order_acquire);
    for (std::uint64_t rest = streams; rest != 0; rest &= rest - 1) {
      stream::state_of(block.device_index, std::countr_zero(rest)).drain();
      if (block.users.load(std::memory_order_acquire) <= 1) break;
    }
    std::this_thread::yield();
  }
}

}  // namespace

void* begin_host_access(void* data) {
  Block* block = block_of(data);
  if (block == nullptr) return nullptr;
  check_process();
  if (block->users.load(std::memory_order_acquire) > 1) {
    note_sync("host code that uses pending work");
    wait_for_users(*block);
  }
  for (std::uint64_t rest = block->streams.load(std::memory_order_acquire); rest != 0;
       rest &= rest - 1) {
    stream::state_of(block->device_index, std::countr_zero(rest)).raise_error();
  }
  sanitizer::on_host_access(*block);
  return memory::open_window(block) ? block : nullptr;
}

void end_host_access(void* window) noexcept {
  memory::close_window(static_cast<Block*>(window));
}

}  // namespace npu
