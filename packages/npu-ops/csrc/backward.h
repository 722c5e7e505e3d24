// Runs backward on the calling thread, as on the CPU.
#pragma once

#include <c10/core/AutogradState.h>

namespace npu::ops {

// Torch creates a backward thread for each accelerator. For host kernels that is a second pool of
// OpenMP threads, which competes with the caller's: steps of a small model took twice the time.
// Switches torch.autograd.set_multithreading_enabled off at a thread's first op on npu; a user may
// switch it on again.
inline void keep_backward_here() {
  static thread_local bool is_done = false;
  if (C10_LIKELY(is_done)) return;
  is_done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace npu::ops
