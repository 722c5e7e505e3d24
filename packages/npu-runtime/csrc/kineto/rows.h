// The rows of a device in torch's trace: one per stream and one for copies, and more if spans
// overlap.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <IActivityProfiler.h>

#include "observe/buffer.h"

namespace npu::kineto {

class Rows {
 public:
  // The number of a span's row; rows of a device have different numbers, and a stream's first row
  // has the stream's. Precondition: called in order of start.
  std::int32_t place(const observe::Record& span);

  std::set<c10::DeviceIndex> devices() const;

  // The process id of a device in the trace.
  static libkineto::DeviceInfo device_info(c10::DeviceIndex device_index);

  std::vector<libkineto::ResourceInfo> resource_infos() const;

 private:
  struct Key {
    c10::DeviceIndex device_index;
    std::int32_t kind;  // a stream's id, or kCopies
    auto operator<=>(const Key&) const = default;
  };

  // End of the latest span, by row.
  std::map<Key, std::vector<std::int64_t>> lane_ends_;
};

}  // namespace npu::kineto
