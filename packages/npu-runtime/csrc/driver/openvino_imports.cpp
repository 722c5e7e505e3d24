// Imports of memory into the NPU: ranges of the pool, imported at a program's first use.
#include <unistd.h>

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "driver/host_memory.h"
#include "driver/openvino_parts.h"

namespace npu::openvino {
namespace {

// Committed memory, and its imported parts.
struct Range {
  std::size_t size_bytes = 0;
  std::uintptr_t imported_begin = 0;
  std::size_t imported_bytes = 0;
  Owned<ov_tensor_t> import{nullptr, nullptr};  // keeps the memory imported
  std::uint64_t number = 0;                     // of the import; 0 before an attempt
};

struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, Range> by_address;
  std::uint64_t imports = 0;  // attempted so far
};

Ranges& ranges() {
  static auto* instance = new Ranges;  // pools free memory after static destructors began
  return *instance;
}

bool import(Range& range, std::uintptr_t begin, std::uintptr_t end) {
  std::int64_t size = static_cast<std::int64_t>(end - begin);
  ov_tensor_t* tensor = nullptr;
  // The plugin's memory type for addresses of the process (MemType::CPU_VA).
  const auto status = device.api.ov_remote_context_create_tensor(
      device.context, U8, ov_shape_t{1, &size}, 4, &tensor, "MEM_TYPE", "CPU_VA", "MEM_HANDLE",
      reinterpret_cast<void*>(begin));
  if (status != OK) return false;
  range.import = {tensor, device.api.ov_tensor_free};
  range.imported_begin = begin;
  range.imported_bytes = end - begin;
  return true;
}

}  // namespace

std::uint64_t import_around(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  auto found = all.by_address.upper_bound(address);
  if (found == all.by_address.begin()) return 0;
  auto& [start, range] = *--found;
  if (address - start >= range.size_bytes) return 0;
  if (range.number == 0) {
    range.number = ++all.imports;
    // The plugin refuses a range that ends where another import begins. So the first page of a
    // large block, which is the pool's, is left out, and the range below can be imported whole.
    // Without its last page, a range does not touch another import.
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto begin = address == start + page ? address : start;
    const auto end = start + range.size_bytes;
    if (!import(range, begin, end) && end - begin > page) import(range, begin, end - page);
  }
  return address - range.imported_begin < range.imported_bytes ? range.number : 0;
}

npu_status memory_commit(std::int32_t index, void* address, std::size_t size_bytes) {
  NPU_TRY(driver::host_memory_commit(index, address, size_bytes));
  if (device.context == nullptr) return NPU_OK;
  Ranges& all = ranges();
  const std::lock_guard lock(all.mutex);
  all.by_address.insert_or_assign(reinterpret_cast<std::uintptr_t>(address),
                                  Range{.size_bytes = size_bytes});
  return NPU_OK;
}

npu_status memory_decommit(std::int32_t index, void* address, std::size_t size_bytes) {
  if (device.context != nullptr) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const auto end = begin + size_bytes;
    Ranges& all = ranges();
    const std::lock_guard lock(all.mutex);
    // An import holds the pages, and would outlive the mapping. The rest of a partly freed range is
    // imported again at its next use.
    auto range = all.by_address.lower_bound(begin);
    if (range != all.by_address.begin()) {
      const auto before = std::prev(range);
      if (before->first + before->second.size_bytes > begin) range = before;
    }
    while (range != all.by_address.end() && range->first < end) {
      const auto first = range->first;
      const auto last = first + range->second.size_bytes;
      range = all.by_address.erase(range);
      if (first < begin) all.by_address.emplace(first, Range{.size_bytes = begin - first});
      if (last > end) all.by_address.emplace(end, Range{.size_bytes = last - end});
    }
  }
  return driver::host_memory_decommit(index, address, size_bytes);
}

}  // namespace npu::openvino
