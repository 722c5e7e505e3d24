// Torch's threads for backward passes on npu, at the end of the process.
#pragma once

namespace npu::python {

// Ends them and waits for them; call it while Python still works, without the GIL.
//
// After a backward pass, its thread releases Python objects under the GIL while the program
// continues. If the program ends at that moment, the thread loses the GIL and the process aborts
// (torch 2.13, Python 3.11). No-op without such threads.
void stop_autograd_threads();

}  // namespace npu::python
