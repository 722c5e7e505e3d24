// Converts the runtime's events to kineto's activities: rows of the host, rows of the device, and
// arrows between them.
#pragma once

#include <GenericTraceActivity.h>
#include <IActivityProfiler.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "kineto/rows.h"
#include "observe/buffer.h"

namespace npu::kineto {

class Activities {
 public:
  // `types` are the requested types; others are left out.
  Activities(const std::set<libkineto::ActivityType>& types, Rows& rows,
             libkineto::getLinkedActivityCallback linked_activity,
             libkineto::ActivityLogger& logger);

  // Logs the activities of an event. Precondition: called in order of start.
  void add(const observe::Record& record);

  // Logs the spans of record_function on the device's rows, from the first to the last work in
  // each.
  void add_annotations();

 private:
  using Activity = libkineto::GenericTraceActivity;

  void add_host(const observe::Record& record, const char* name, bool starts_flow);
  std::int32_t add_device(const observe::Record& record, libkineto::ActivityType type);
  void note_annotation(const observe::Record& record, std::int32_t row);
  const libkineto::ITraceActivity* linked(std::uint64_t id) const;
  void log(const Activity& activity);

  const std::set<libkineto::ActivityType>& types_;
  Rows& rows_;
  libkineto::getLinkedActivityCallback linked_activity_;
  libkineto::ActivityLogger& logger_;

  struct Annotation {
    std::int64_t start_ns;
    std::int64_t end_ns;
  };
  struct AnnotationKey {
    std::uint64_t id;
    c10::DeviceIndex device_index;
    std::int32_t row;
    auto operator<=>(const AnnotationKey&) const = default;
  };
  std::map<AnnotationKey, Annotation> annotations_;
};

}  // namespace npu::kineto
