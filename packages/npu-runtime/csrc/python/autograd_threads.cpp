// End of the process while torch still has threads for backward passes.
#include "python/autograd_threads.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include <torch/csrc/autograd/engine.h>

namespace npu::python {
namespace {

// Maximum delay of the process's end by a pass on another thread.
constexpr std::chrono::seconds kLongestWait{2};
constexpr std::chrono::microseconds kPause{200};

// Torch names its threads; one whose name the system still lists may still take the GIL.
bool has_autograd_thread() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("pt_autograd_")) return true;
  }
  return false;
}

}  // namespace

void stop_autograd_threads() {
  torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (!has_autograd_thread()) {
    // A forked child still counts its parent's threads, and would wait ten seconds for them.
    engine.release_workers();
    return;
  }
  engine.stop();
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  while (has_autograd_thread() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace npu::python
