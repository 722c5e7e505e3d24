// The pool in Python: statistics, snapshots, stacks, the limit and the out-of-memory observer.
#include "python/memory.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <unordered_map>

#include "memory/arena.h"
#include "memory/pool.h"
#include "memory/trace.h"
#include "npu/allocator.h"

// torch's header for this function includes a JSON library that its wheel does not carry.
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

// Live blocks with their stacks as lists of {filename, line, name}, oldest first.
py::list live_blocks() {
  const auto blocks = memory::trace::live_blocks();
  std::vector<torch::CapturedTraceback*> stacks;
  for (const auto& block : blocks) {
    if (block.stack != nullptr) stacks.push_back(block.stack.get());
  }
  const torch::SymbolizedTracebacks traced = torch::symbolize(stacks);
  std::size_t next = 0;
  py::list result;
  for (const auto& block : blocks) {
    py::list frames;
    if (block.stack != nullptr) {
      for (const std::uint64_t index : traced.tracebacks.at(next++)) {
        const auto& frame = traced.all_frames.at(index);
        py::dict named;
        named["filename"] = frame.filename;
        named["line"] = frame.lineno;
        named["name"] = frame.funcname;
        frames.append(named);
      }
    }
    py::dict entry;
    entry["address"] = block.address;
    entry["requested_size"] = block.requested_bytes;
    entry["device"] = block.device_index;
    entry["frames"] = frames;
    result.append(entry);
  }
  return result;
}

py::list segments(c10::DeviceIndex device_index) {
  py::list result;
  for (const auto& segment : memory::pool(device_index).snapshot()) {
    py::list blocks;
    // A block's header lies in front of its data; a large one's fills the segment's first page.
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
    entry["blocks"] = blocks;
    result.append(entry);
  }
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
    // The out-of-memory error is the one to be seen.
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
  module.def("memory_segments", &segments);
  module.def("memory_live_blocks", &live_blocks);
  module.def("set_memory_recording", &memory::trace::set_recording);
  module.def("set_memory_limit", [](c10::DeviceIndex index, std::size_t bytes) {
    memory::pool(index).set_limit(bytes);
  });
  module.def("set_out_of_memory_observer", &set_observer);
}

}  // namespace npu::python
