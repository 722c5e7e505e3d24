// One window of torch's profiler on the device: listens to the runtime's events and returns them as
// kineto's activities. profiler.cpp registers it.
#pragma once

#include <IActivityProfiler.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kineto/rows.h"
#include "observe/buffer.h"

namespace npu::kineto {

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<libkineto::ActivityType> types);
  ~Session() override;

  void start() override;
  void stop() override;
  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override;
  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback linked_activity, std::int64_t start_ns,
                    std::int64_t end_ns) override;

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override;
  std::vector<libkineto::ResourceInfo> getResourceInfos() override;
  // The logger keeps copies of the activities.
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override;

  void pushCorrelationId(std::uint64_t id) override;
  void popCorrelationId() override;
  void pushUserCorrelationId(std::uint64_t id) override;
  void popUserCorrelationId() override;

 private:
  const std::set<libkineto::ActivityType> types_;
  bool is_recording_ = false;
  observe::RecordList records_;
  Rows rows_;
  std::vector<std::string> errors_;
};

}  // namespace npu::kineto
