// The pool in Python: statistics, snapshots, stacks, the limit and the out-of-memory observer.
#include "python/memory.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <ATen/core/CachingHostAllocator.h>

#include <unordered_map>

#include "memory/arena.h"
#include "memory/pool.h"
#include "memory/trace.h"
#include "npu/allocator.h"
#include "npu/process.h"

// Torch's header of this function includes a JSON library that its wheel lacks.
namespace torch {
void installCapturedTracebackPython();
}

namespace npu::python {

namespace {

py::dict stat_dict(const c10::CachingAllocator::StatArray& array) {
  constexpr const char* kPools[] = {"all", "small_pool", "large_pool"};
  py::dict pools;
  for (std::size_t i = 0; i < array.size(); ++i) {
    py::dict values;
    values["current"] = array[i].current;
    values["peak"] = array[i].peak;
    values["allocated"] = array[i].allocated;
    values["freed"] = array[i].freed;
    pools[kPools[i]] = values;
  }
  return pools;
}

py::dict memory_stats(c10::DeviceIndex device_index) {
  const auto stats = device_allocator()->getDeviceStats(device_index);
  py::dict result;
  result["allocation"] = stat_dict(stats.allocation);
  result["segment"] = stat_dict(stats.segment);
  result["active"] = stat_dict(stats.active);
  result["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  result["reserved_bytes"] = stat_dict(stats.reserved_bytes);
  result["active_bytes"] = stat_dict(stats.active_bytes);
  result["requested_bytes"] = stat_dict(stats.requested_bytes);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  return result;
}

// The stack of each record as a list of {filename, line, name}.
template <typename Record>
std::vector<py::list> frames_of(const std::vector<Record>& records) {
  std::vector<torch::CapturedTraceback*> stacks;
  for (const auto& record : records) {
    if (record.stack != nullptr) stacks.push_back(record.stack.get());
  }
  const torch::SymbolizedTracebacks traced = torch::symbolize(stacks);
  std::size_t next = 0;
  std::vector<py::list> result;
  for (const auto& record : records) {
    py::list& frames = result.emplace_back();
    if (record.stack == nullptr) continue;
    for (const std::uint64_t index : traced.tracebacks.at(next++)) {
      const auto& frame = traced.all_frames.at(index);
      py::dict named;
      named["filename"] = frame.filename;
      named["line"] = frame.lineno;
      named["name"] = frame.funcname;
      frames.append(named);
    }
  }
  return result;
}

// The actions of a device's pools, oldest first, with the names of torch's snapshots.
py::list history(c10::DeviceIndex device_index) {
  using memory::trace::Action;
  const auto entries = memory::trace::history();
  const std::vector<py::list> frames = frames_of(entries);
  py::list result;
  const auto add = [&result](const auto& entry, const char* action, const py::list& stack) {
    py::dict named;
    named["action"] = action;
    named[entry.action == Action::kOutOfMemory ? "device_free" : "addr"] = entry.address;
    named["size"] = entry.bytes;
    named["stream"] = 0;
    named["time_us"] = entry.time_us;
    named["frames"] = stack;
    result.append(named);
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    if (entry.device_index != device_index) continue;
    switch (entry.action) {
      case Action::kAlloc:
        add(entry, "alloc", frames[i]);
        break;
      case Action::kFree:  // a block used by pending work is freed when the work has ended
        add(entry, "free_requested", frames[i]);
        add(entry, "free_completed", frames[i]);
        break;
      case Action::kSegmentAlloc:
        add(entry, "segment_alloc", frames[i]);
        break;
      case Action::kSegmentFree:
        add(entry, "segment_free", frames[i]);
        break;
      case Action::kOutOfMemory:
        add(entry, "oom", frames[i]);
        break;
    }
  }
  return result;
}

// Live blocks with their stacks, oldest first.
py::list live_blocks() {
  const auto blocks = memory::trace::live_blocks();
  const std::vector<py::list> frames = frames_of(blocks);
  py::list result;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto& block = blocks[i];
    py::dict entry;
    entry["address"] = block.address;
    entry["requested_size"] = block.requested_bytes;
    entry["device"] = block.device_index;
    entry["frames"] = frames[i];
    result.append(entry);
  }
  return result;
}

py::list segments(c10::DeviceIndex device_index, c10::MempoolId_t id) {
  py::list result;
  for (const auto& segment : memory::pool(device_index).snapshot(id)) {
    py::list blocks;
    // A block's header is before its data; a large one's fills the segment's first page.
    std::size_t address = segment.address + (segment.is_large ? memory::kPage : 2 * sizeof(Block));
    for (const auto& block : segment.blocks) {
      py::dict entry;
      entry["address"] = address;
      address += block.size + sizeof(Block);
      entry["size"] = block.size;
      entry["requested_size"] = block.requested_size;
      entry["state"] = block.allocated ? "active_allocated" : "inactive";
      blocks.append(entry);
    }
    py::dict entry;
    entry["device"] = segment.device;
    entry["address"] = segment.address;
    entry["total_size"] = segment.total_size;
    entry["allocated_size"] = segment.allocated_size;
    entry["active_size"] = segment.active_size;
    entry["requested_size"] = segment.requested_size;
    entry["segment_type"] = segment.is_large ? "large" : "small";
    entry["segment_pool_id"] = segment.owner_private_pool_id;
    entry["blocks"] = blocks;
    result.append(entry);
  }
  return result;
}

py::dict host_memory_stats() {
  const auto stat = [](const auto& value) {
    py::dict values;
    values["current"] = value.current;
    values["peak"] = value.peak;
    values["allocated"] = value.allocated;
    values["freed"] = value.freed;
    return values;
  };
  const auto duration = [](const auto& value) {
    py::dict values;
    values["total"] = value.total;
    values["max"] = value.max;
    values["min"] = value.min;
    values["count"] = value.count;
    values["avg"] = value.count == 0 ? 0 : value.total / value.count;
    return values;
  };
  const at::HostStats stats = at::getHostAllocator(c10::DeviceType::PrivateUse1)->get_stats();
  py::dict result;
  result["allocations"] = stat(stats.allocations);
  result["allocated_bytes"] = stat(stats.allocated_bytes);
  result["active_requests"] = stat(stats.active_requests);
  result["active_bytes"] = stat(stats.active_bytes);
  result["host_alloc_time"] = duration(stats.host_alloc_time);
  result["host_free_time"] = duration(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

PyObject* observer = nullptr;

// Called on the thread that ran out of memory, without the pool's lock.
void tell_observer(c10::DeviceIndex device_index, std::size_t bytes, std::size_t free_bytes) {
  const py::gil_scoped_acquire lock;
  if (observer == nullptr) return;
  try {
    const auto call = py::reinterpret_borrow<py::object>(observer);
    call(device_index, bytes, free_bytes);
  } catch (py::error_already_set& error) {
    // Report only the out-of-memory error.
    error.discard_as_unraisable("npu_runtime's out-of-memory observer");
  }
}

void set_observer(py::object function) {
  Py_XDECREF(observer);
  observer = function.is_none() ? nullptr : function.release().ptr();
  memory::set_out_of_memory_observer(observer == nullptr ? nullptr : &tell_observer);
}

}  // namespace

void bind_memory(py::module_& module) {
  torch::installCapturedTracebackPython();
  module.def("memory_stats", &memory_stats);
  module.def("reset_accumulated_memory_stats",
             [](c10::DeviceIndex index) { device_allocator()->resetAccumulatedStats(index); });
  module.def("reset_peak_memory_stats",
             [](c10::DeviceIndex index) { device_allocator()->resetPeakStats(index); });
  module.def("empty_cache", [] { device_allocator()->emptyCache(); });
  module.def("memory_info",
             [](c10::DeviceIndex index) { return device_allocator()->getMemoryInfo(index); });
  module.def("memory_segments", &segments, py::arg("device_index"),
             py::arg("pool_id") = c10::MempoolId_t{0, 0});
  module.def("memory_live_blocks", &live_blocks);
  module.def("set_memory_recording", &memory::trace::set_recording);
  module.def("set_memory_history", &memory::trace::set_history);
  module.def("memory_history", &history);
  module.def("new_memory_pool_id", [] { return memory::new_region_id(/*is_graphs=*/false); });
  module.def("retain_memory_pool",
             [](c10::DeviceIndex index, c10::MempoolId_t id, bool use_on_oom) {
               memory::pool(index).retain_region(id, use_on_oom);
             });
  module.def("release_memory_pool", [](c10::DeviceIndex index, c10::MempoolId_t id) {
    if (!is_in_bad_fork()) memory::pool(index).release_region(id);
  });
  module.def("memory_pool_users", [](c10::DeviceIndex index, c10::MempoolId_t id) {
    return memory::pool(index).region_users(id);
  });
  module.def("begin_allocate_to_pool", [](c10::DeviceIndex index, c10::MempoolId_t id) {
    memory::pool(index).begin_region(id);
  });
  module.def("end_allocate_to_pool", [](c10::DeviceIndex index, c10::MempoolId_t id) {
    memory::pool(index).end_region(id);
  });
  module.def("set_memory_caching", &memory::set_caching);
  module.def("is_memory_caching", &memory::is_caching);
  module.def("host_memory_stats", &host_memory_stats);
  module.def("reset_accumulated_host_memory_stats",
             [] { at::getHostAllocator(c10::DeviceType::PrivateUse1)->reset_accumulated_stats(); });
  module.def("reset_peak_host_memory_stats",
             [] { at::getHostAllocator(c10::DeviceType::PrivateUse1)->reset_peak_stats(); });
  module.def("set_memory_limit", [](c10::DeviceIndex index, std::size_t bytes) {
    memory::pool(index).set_limit(bytes);
  });
  module.def("set_out_of_memory_observer", &set_observer);
}

}  // namespace npu::python
