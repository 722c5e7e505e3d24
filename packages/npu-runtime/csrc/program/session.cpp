// Sessions: sequential runs of one request with persistent variables.
#include <thread>
#include <utility>

#include "graph/graph.h"
#include "npu/error.h"
#include "npu/process.h"
#include "npu/program.h"
#include "npu/stream.h"
#include "program/layers.h"
#include "program/run_lease.h"
#include "stream/stream_state.h"

namespace npu {

Session::Session(std::shared_ptr<Program> program)
    : program_(std::move(program)), request_(program_->make_request()) {}

Session::~Session() {
  // The driver may still use the request; errors of its run remain with the stream.
  if (!is_in_bad_fork()) wait_for_run();
}

void Session::wait_for_run() {
  check_process();  // a forked child would wait forever for threads of its parent
  while (is_running_->load(std::memory_order_acquire)) {
    try {
      for (c10::StreamId id = 0; id < kStreams; ++id)
        stream::state_of(program_->device_index_, id).drain();
    } catch (const Error&) {
      // Destructors call this, and the flag still marks the end of the session.
      std::this_thread::yield();
    }
  }
}

std::vector<at::Tensor> Session::run(const std::vector<at::Tensor>& inputs,
                                     const GivenOutputs& outputs, c10::Device output_device) {
  const std::lock_guard lock(mutex_);
  wait_for_run();
  if (Graph::capturing() != nullptr) {
    throw Error(ErrorKind::kInput, "capture-session",
                "program " + program_->name() +
                    ": a captured program must not have variables, got a session. Run the session "
                    "outside the graph.");
  }
  return program_->run_on(
      request_.get(), inputs, outputs, output_device,
      {.running = program::RunLease::Running(is_running_), .program = program_, .request = {}});
}

// OpenVINO's C interface has no access to variables; a new request starts with initial ones.
void Session::reset() {
  const std::lock_guard lock(mutex_);
  wait_for_run();
  request_.reset();
  request_ = program_->make_request();
}

std::vector<LayerRecord> Session::layers() {
  const std::lock_guard lock(mutex_);
  wait_for_run();
  return program::read_layers(request_.get());
}

}  // namespace npu
