// The mapping to kineto's activities: a run is a kernel, a copy a memcpy, and the host's calls for
// them are runtime calls.
#include "kineto/activities.h"

#include <output_base.h>

#include <algorithm>
#include <string>
#include <utility>

#include "npu/process.h"

namespace npu::kineto {

using libkineto::ActivityType;

namespace {

// Escapes our texts in JSON, which kineto does not.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result;
}

void add_args(const observe::Record& record, libkineto::GenericTraceActivity& activity) {
  for (std::size_t i = 0; i < record.arg_count; ++i) {
    const observe::RecordArg& arg = record.args[i];
    switch (arg.kind) {
      case observe::Arg::Kind::kNumber:
        activity.addMetadata(arg.key, arg.value);
        break;
      case observe::Arg::Kind::kFlag:
        activity.addMetadata(arg.key, arg.value != 0);
        break;
      case observe::Arg::Kind::kText:
        activity.addMetadataQuoted(arg.key, escaped(*arg.text));
        break;
    }
  }
}

}  // namespace

Activities::Activities(const std::set<ActivityType>& types, Rows& rows,
                       libkineto::getLinkedActivityCallback linked_activity,
                       libkineto::ActivityLogger& logger)
    : types_(types), rows_(rows), linked_activity_(std::move(linked_activity)), logger_(logger) {}

void Activities::add(const observe::Record& record) {
  const std::string& category = *record.category;
  // Time of the enclosing program: counted again it would double the device's time.
  if (category == "layer" || category == "layer_shapes") return;
  if (category == "program") {
    // The call that enqueued a run is a separate event.
    if (!record.is_enqueued) add_host(record, "npu::run", true);
    note_annotation(record, add_device(record, ActivityType::CONCURRENT_KERNEL));
  } else if (category == "copy") {
    add_host(record, "npu::copy", true);
    note_annotation(record, add_device(record, ActivityType::GPU_MEMCPY));
  } else if (category == "launch") {
    add_host(record, "npu::launch", true);
  } else if (category == "fallback") {
    // By op, so that sorting by host time still shows the slow op.
    add_host(record, ("npu::fallback " + *record.name).c_str(), false);
  } else if (category == "sync") {
    add_host(record, ("npu::synchronize " + *record.name).c_str(), false);
  } else if (category == "compile") {
    add_host(record, "npu::load", false);
  } else {
    add_host(record, record.name->c_str(), false);
  }
}

void Activities::add_host(const observe::Record& record, const char* name, bool starts_flow) {
  Activity activity;
  activity.activityType = ActivityType::PRIVATEUSE1_RUNTIME;
  activity.activityName = escaped(name);
  activity.startTime = record.start_ns;
  activity.endTime = record.start_ns + record.duration_ns;
  activity.device = libkineto::processId();
  activity.resource = static_cast<std::int32_t>(record.origin.thread_id);
  activity.threadId = activity.resource;
  activity.id = static_cast<std::int32_t>(record.origin.work_id);
  activity.linked = linked(record.origin.op_id);
  if (activity.linked != nullptr) {
    // Our clock and torch's differ by a fraction of a microsecond, and torch finds children by
    // their times.
    const std::int64_t from = activity.linked->timestamp();
    const std::int64_t to = from + activity.linked->duration();
    activity.startTime = std::clamp(activity.startTime, from, std::max(from, to));
    activity.endTime =
        std::clamp(activity.endTime, activity.startTime, std::max(activity.startTime, to));
  }
  if (starts_flow) {
    activity.flow.id = record.origin.work_id;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = 1;
  }
  activity.addMetadataQuoted("name", escaped(*record.name));
  activity.addMetadata("correlation", record.origin.work_id);
  if (record.stream >= 0) activity.addMetadata("stream", record.stream);
  add_args(record, activity);
  log(activity);
}

std::int32_t Activities::add_device(const observe::Record& record, ActivityType type) {
  Activity activity;
  activity.activityType = type;
  activity.activityName = escaped(*record.name);
  activity.startTime = record.start_ns;
  activity.endTime = record.start_ns + record.duration_ns;
  activity.device = record.device_index;
  activity.resource = rows_.place(record);
  activity.threadId = static_cast<std::int32_t>(record.origin.thread_id);
  activity.id = static_cast<std::int32_t>(record.origin.work_id);
  activity.linked = linked(record.origin.op_id);
  activity.flow.id = record.origin.work_id;
  activity.flow.type = libkineto::kLinkAsyncCpuGpu;
  activity.flow.start = 0;
  activity.addMetadata("correlation", record.origin.work_id);
  activity.addMetadata("device_index", static_cast<int>(record.device_index));
  if (record.stream >= 0) activity.addMetadata("stream", record.stream);
  if (record.is_enqueued) {
    activity.addMetadata("queued_us", (record.start_ns - record.origin.time_ns) / 1000);
  }
  add_args(record, activity);
  log(activity);
  return activity.resource;
}

void Activities::note_annotation(const observe::Record& record, std::int32_t row) {
  const std::uint64_t id = record.origin.annotation_id;
  if (id == 0) return;
  const std::int64_t end_ns = record.start_ns + record.duration_ns;
  const auto [found, is_new] =
      annotations_.try_emplace({id, record.device_index, row}, Annotation{record.start_ns, end_ns});
  if (!is_new) found->second.end_ns = std::max(found->second.end_ns, end_ns);
}

void Activities::add_annotations() {
  for (const auto& [key, span] : annotations_) {
    const libkineto::ITraceActivity* annotation = linked(key.id);
    if (annotation == nullptr) continue;
    Activity activity;
    activity.activityType = ActivityType::GPU_USER_ANNOTATION;
    activity.activityName = annotation->name();
    activity.startTime = span.start_ns;
    activity.endTime = span.end_ns;
    activity.device = key.device_index;
    activity.resource = key.row;
    activity.id = static_cast<std::int32_t>(key.id);
    activity.linked = annotation;
    log(activity);
  }
}

const libkineto::ITraceActivity* Activities::linked(std::uint64_t id) const {
  return id == 0 || !linked_activity_ ? nullptr : linked_activity_(static_cast<std::int32_t>(id));
}

void Activities::log(const Activity& activity) {
  if (types_.contains(activity.activityType)) activity.log(logger_);
}

}  // namespace npu::kineto
