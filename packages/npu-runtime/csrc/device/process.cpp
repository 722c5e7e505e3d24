// Marks forked children in which the device cannot work.
#include "npu/process.h"

#include <pthread.h>

#include "npu/error.h"

namespace npu {

namespace detail {

std::atomic<bool> in_bad_fork{false};

void raise_bad_fork() {
  throw Error(ErrorKind::kDevice, "forked-after-use",
              "npu: the device cannot be used in a process that was forked after its parent used "
              "it; this is such a child. To use npu with multiprocessing, start processes with "
              "the 'spawn' or 'forkserver' method, or do not touch npu before the fork.");
}

}  // namespace detail

void mark_device_used() {
  [[maybe_unused]] static const int registered = pthread_atfork(
      nullptr, nullptr, [] { detail::in_bad_fork.store(true, std::memory_order_relaxed); });
}

}  // namespace npu
