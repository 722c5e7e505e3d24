// Failures of calls and delays of work on the simulated device. Tests set both through
// npu_runtime.sim.
#include "driver/sim_faults.h"

#include <chrono>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "driver/host_device.h"

namespace npu::sim {
namespace {

struct Fault {
  npu_status status;
  std::int64_t skip;
  std::int64_t times;
};

struct Faults {
  std::mutex mutex;
  std::unordered_map<std::string, Fault> by_call;
  std::int64_t least_us = 0;
  std::int64_t most_us = 0;
  std::mt19937_64 random;
};

Faults& faults() {
  static auto* instance = new Faults;
  return *instance;
}

}  // namespace

std::optional<npu_status> planted(const char* call) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_call.find(call);
  if (found == all.by_call.end()) return std::nullopt;
  Fault& fault = found->second;
  if (fault.skip > 0) {
    --fault.skip;
    return std::nullopt;
  }
  const npu_status status = fault.status;
  if (--fault.times <= 0) all.by_call.erase(found);
  return driver::fail(status, std::string(call) + ": a test planted this failure");
}

void delay() {
  Faults& all = faults();
  std::int64_t wait_us = 0;
  {
    const std::lock_guard lock(all.mutex);
    if (all.most_us > 0) {
      wait_us = std::uniform_int_distribution<std::int64_t>(all.least_us, all.most_us)(all.random);
    }
  }
  if (wait_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
}

void set_delay(std::int64_t least_us, std::int64_t most_us, std::uint64_t seed) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.least_us = least_us;
  all.most_us = most_us;
  all.random.seed(seed);
}

void inject_failure(std::string call, npu_status status, std::int64_t skip, std::int64_t times) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.by_call[std::move(call)] = {status, skip, times};
}

void clear() {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.by_call.clear();
  all.least_us = all.most_us = 0;
}

}  // namespace npu::sim
