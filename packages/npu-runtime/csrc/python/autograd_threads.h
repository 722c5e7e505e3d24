// The threads on which torch runs backward passes of npu, at the end of the process.
#pragma once

namespace npu::python {

// Ends them and waits until they are gone; to be called while Python still works, without its lock.
//
// After a backward pass its thread lets go of Python objects, for which it takes Python's lock,
// while the program is already going on. A program that ends at that moment takes the lock from
// the thread, and the process aborts (torch 2.13, Python 3.11). No-op where no such thread runs.
void stop_autograd_threads();

}  // namespace npu::python
