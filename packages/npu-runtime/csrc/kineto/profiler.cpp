// Registers the device with torch's profiler, in both of its ways: kineto's activities (a Session
// for each window), and the older one that brackets every op with two events of the device.
//
// What a session makes of the runtime's events is activities.cpp.
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <libkineto.h>

#include <memory>
#include <set>
#include <string>

#include "kineto/session.h"

namespace npu::kineto {

namespace {

using libkineto::ActivityType;

class NpuProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }

  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config& /*config*/) override {
    // A profile of the CPU alone asks for runtime calls as well; without a device's row to point
    // to they would only split its ops in two.
    if (!types.contains(ActivityType::CONCURRENT_KERNEL) &&
        !types.contains(ActivityType::GPU_MEMCPY)) {
      return nullptr;
    }
    return std::make_unique<Session>(types);
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      std::int64_t /*start_ms*/, std::int64_t /*duration_ms*/, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "npu";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::GPU_USER_ANNOTATION,
                                         ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(NpuProfiler);

}  // namespace

}  // namespace npu::kineto
