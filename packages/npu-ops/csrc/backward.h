// Runs backward in the thread that calls it, as on the CPU.
#pragma once

#include <c10/core/AutogradState.h>

namespace npu::ops {

// torch gives each device of its own kind a thread for backward. For kernels on the host that is a
// second pool of OpenMP threads, which fights the caller's for the cores: steps of a small model
// took twice the time. Switches torch.autograd.set_multithreading_enabled off at a thread's first
// op on npu; whoever switches it on again later keeps it on.
inline void keep_backward_here() {
  static thread_local bool is_done = false;
  if (C10_LIKELY(is_done)) return;
  is_done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace npu::ops
