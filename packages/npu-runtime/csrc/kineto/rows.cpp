// Assigns rows. Viewers draw only nested spans, so overlapping ones need separate rows: two threads
// can run short programs synchronously on one stream.
#include "kineto/rows.h"

#include <output_base.h>

#include <algorithm>

#include "driver/device_selection.h"
#include "npu/process.h"

namespace npu::kineto {

namespace {

constexpr std::int32_t kCopies = 1000;       // above every stream's id
constexpr std::int32_t kLaneStride = 10000;  // above every kind

std::string device_name(c10::DeviceIndex device_index) {
  return "npu:" + std::to_string(static_cast<int>(device_index));
}

}  // namespace

std::int32_t Rows::place(const observe::Record& span) {
  const Key key{span.device_index, span.stream < 0 ? kCopies : span.stream};
  std::vector<std::int64_t>& ends = lane_ends_[key];
  const auto free = std::find_if(ends.begin(), ends.end(),
                                 [&](std::int64_t end_ns) { return end_ns <= span.start_ns; });
  const auto lane = static_cast<std::int32_t>(free - ends.begin());
  const std::int64_t end_ns = span.start_ns + span.duration_ns;
  if (free == ends.end()) {
    ends.push_back(end_ns);
  } else {
    *free = end_ns;
  }
  return key.kind + lane * kLaneStride;
}

std::set<c10::DeviceIndex> Rows::devices() const {
  std::set<c10::DeviceIndex> found;
  for (const auto& [key, ends] : lane_ends_)
    found.insert(key.device_index);
  return found;
}

libkineto::DeviceInfo Rows::device_info(c10::DeviceIndex device_index) {
  npu_device_properties properties{};
  const bool is_known = !is_in_bad_fork() && driver::is_open() &&
                        driver::table().device_properties(device_index, &properties) == NPU_OK;
  return {.id = device_index,
          .sortIndex = libkineto::kExceedMaxPid + device_index,
          .name = device_name(device_index),
          .label = is_known ? std::string(properties.name) + " " + properties.full_name : ""};
}

std::vector<libkineto::ResourceInfo> Rows::resource_infos() const {
  std::vector<libkineto::ResourceInfo> infos;
  for (const auto& [key, ends] : lane_ends_) {
    const std::string title =
        device_name(key.device_index) +
        (key.kind == kCopies ? " copies" : " stream " + std::to_string(key.kind));
    for (std::int32_t lane = 0; lane < static_cast<std::int32_t>(ends.size()); ++lane) {
      const std::string name = lane == 0 ? title : title + " (" + std::to_string(lane + 1) + ")";
      infos.push_back({.id = key.kind + lane * kLaneStride,
                       .sortIndex = key.kind * 100 + lane,
                       .deviceId = key.device_index,
                       .name = name});
    }
  }
  return infos;
}

}  // namespace npu::kineto
