// Memory that the NPU is told of: ranges of the pool, imported at their first use by a program.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "driver/host_memory.h"
#include "driver/openvino_parts.h"

namespace npu::openvino {
namespace {

using Tensor = std::unique_ptr<ov_tensor_t, void (*)(ov_tensor_t*)>;

// Memory that was committed. The tensor keeps it imported; null before that, or where it failed.
struct Range {
  std::size_t size_bytes = 0;
  Tensor imported{nullptr, nullptr};
  bool is_tried = false;
};

struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, Range> by_address;
};

Ranges& ranges() {
  static auto* instance = new Ranges;  // pools give memory back after static destructors began
  return *instance;
}

Tensor import(std::uintptr_t address, std::size_t size_bytes) {
  std::int64_t size = static_cast<std::int64_t>(size_bytes);
  ov_tensor_t* tensor = nullptr;
  // The plugin's kind of memory for addresses of the process (MemType::CPU_VA).
  const auto status = device.api.ov_remote_context_create_tensor(
      device.context, U8, ov_shape_t{1, &size}, 4, &tensor, "MEM_TYPE", "CPU_VA", "MEM_HANDLE",
      reinterpret_cast<void*>(address));
  return {status == OK ? tensor : nullptr, device.api.ov_tensor_free};
}

}  // namespace

void import_around(const void* data) {
  if (device.context == nullptr) return;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  auto found = all.by_address.upper_bound(address);
  if (found == all.by_address.begin()) return;
  auto& [begin, range] = *--found;
  if (address - begin >= range.size_bytes || std::exchange(range.is_tried, true)) return;
  range.imported = import(begin, range.size_bytes);
  // The plugin refuses a range when what begins at its end is imported already. Without its last
  // page it ends where nothing is.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (range.imported == nullptr && range.size_bytes > page)
    range.imported = import(begin, range.size_bytes - page);
}

npu_status memory_commit(std::int32_t index, void* address, std::size_t size_bytes) {
  NPU_TRY(driver::host_memory_commit(index, address, size_bytes));
  if (device.context == nullptr) return NPU_OK;
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  all.by_address.insert_or_assign(reinterpret_cast<std::uintptr_t>(address), Range{size_bytes});
  return NPU_OK;
}

npu_status memory_decommit(std::int32_t index, void* address, std::size_t size_bytes) {
  if (device.context != nullptr) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const auto end = begin + size_bytes;
    Ranges& all = ranges();
    const std::lock_guard lock(all.mutex);
    // The import holds the pages, and would outlive the mapping. What stays of a range that is
    // given back in parts is imported again at its next use.
    auto range = all.by_address.lower_bound(begin);
    if (range != all.by_address.begin()) {
      const auto before = std::prev(range);
      if (before->first + before->second.size_bytes > begin) range = before;
    }
    while (range != all.by_address.end() && range->first < end) {
      const auto first = range->first;
      const auto last = first + range->second.size_bytes;
      range = all.by_address.erase(range);
      if (first < begin) all.by_address.emplace(first, Range{begin - first});
      if (last > end) all.by_address.emplace(end, Range{last - end});
    }
  }
  return driver::host_memory_decommit(index, address, size_bytes);
}

}  // namespace npu::openvino
