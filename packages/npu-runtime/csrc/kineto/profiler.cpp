// Registers the device with both interfaces of torch's profiler: kineto's activities (a Session for
// each window), and the older one with two device events around every op.
//
// activities.cpp converts the runtime's events.
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
    // A CPU-only profile requests runtime calls as well; without a device row they would only split
    // its ops.
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
