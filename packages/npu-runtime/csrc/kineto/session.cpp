// A session's lifetime: kineto starts and stops it, then reads its events.
#include "kineto/session.h"

#include <libkineto.h>
#include <output_base.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "kineto/activities.h"
#include "observe/origin.h"

namespace npu::kineto {

namespace {

// Kineto drops the session of a window replaced by another thread without stopping it, and the new
// one may have begun by then: only the latest may stop listening.
std::atomic<Session*> recording{nullptr};

}  // namespace

Session::Session(std::set<libkineto::ActivityType> types) : types_(std::move(types)) {}

Session::~Session() {
  Session* self = this;
  if (recording.compare_exchange_strong(self, nullptr)) {
    observe::set_listening(observe::kKineto, false);
  }
}

void Session::start() {
  recording.store(this);
  observe::begin_window();
  observe::set_listening(observe::kKineto, false);  // left by an earlier window
  observe::set_listening(observe::kKineto, true);
  status_ = libkineto::TraceStatus::RECORDING;
}

// Pending work ends after the window and is not in it: torch synchronizes before it stops, and
// waiting here would deadlock on torch's locks.
void Session::stop() {
  Session* self = this;
  if (!recording.compare_exchange_strong(self, nullptr)) return;
  observe::Drained drained = observe::drain(observe::kKineto);
  observe::set_listening(observe::kKineto, false);
  records_ = std::move(drained.records);
  if (drained.dropped != 0) {
    errors_.push_back("npu: " + std::to_string(drained.dropped) +
                      " events were dropped; profile a shorter window");
  }
  status_ = libkineto::TraceStatus::PROCESSING;
}

void Session::processTrace(libkineto::ActivityLogger& logger) {
  processTrace(logger, {}, 0, 0);
}

void Session::processTrace(libkineto::ActivityLogger& logger,
                           libkineto::getLinkedActivityCallback linked_activity,
                           std::int64_t start_ns, std::int64_t /*end_ns*/) {
  std::vector<const observe::Record*> spans;
  spans.reserve(records_.size());
  records_.each([&](const observe::Record& record) {
    // Work from before the window that ended in it: its op is not in the trace.
    if (record.is_span && record.origin.time_ns >= start_ns) spans.push_back(&record);
  });
  std::stable_sort(spans.begin(), spans.end(),
                   [](const auto* a, const auto* b) { return a->start_ns < b->start_ns; });
  rows_ = {};
  Activities activities(types_, rows_, std::move(linked_activity), logger);
  for (const observe::Record* span : spans)
    activities.add(*span);
  activities.add_annotations();
  for (const c10::DeviceIndex device_index : rows_.devices()) {
    // The first is getDeviceInfo's; kineto requests no more.
    if (device_index != 0) logger.handleDeviceInfo(Rows::device_info(device_index), start_ns);
  }
  records_ = {};
}

std::unique_ptr<libkineto::DeviceInfo> Session::getDeviceInfo() {
  return std::make_unique<libkineto::DeviceInfo>(Rows::device_info(0));
}

std::vector<libkineto::ResourceInfo> Session::getResourceInfos() {
  return rows_.resource_infos();
}

std::unique_ptr<libkineto::CpuTraceBuffer> Session::getTraceBuffer() {
  return nullptr;
}

void Session::pushCorrelationId(std::uint64_t id) {
  observe::enter(observe::Scope::kOp, id);
}

void Session::popCorrelationId() {
  observe::leave(observe::Scope::kOp);
}

void Session::pushUserCorrelationId(std::uint64_t id) {
  observe::enter(observe::Scope::kAnnotation, id);
}

void Session::popUserCorrelationId() {
  observe::leave(observe::Scope::kAnnotation);
}

}  // namespace npu::kineto
