// The simulated device's memory (one file mapped twice: the device's view is always open, the
// host's only inside windows), and its table: the OpenVINO driver's, with work on a thread per
// stream, injected failures (sim_faults.cpp) and injected bit flips (sim_flips.cpp).
#include "driver/sim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "driver/host_device.h"
#include "driver/host_memory.h"
#include "driver/host_streams.h"
#include "driver/openvino.h"
#include "driver/sim_faults.h"
#include "driver/sim_flips.h"

namespace npu::sim {
namespace {

using driver::fail;

const npu_driver& base() {
  return *openvino::driver_table();
}

npu_status fail_system(const char* call) {
  return fail(errno == ENOMEM ? NPU_ERROR_MEMORY : NPU_ERROR,
              std::string(call) + ": " + std::strerror(errno));
}

// --- memory

struct Memory {
  std::mutex mutex;
  int file = -1;
  char* host_begin = nullptr;
  char* device_begin = nullptr;
  std::size_t size_bytes = 0;
  std::map<void*, int> windows;  // open windows by start of their block
};

Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

// The device's address of the host's `address`. Other memory has the same address for both.
void* device_view(const void* address) {
  const Memory& all = memory();
  auto* host = static_cast<char*>(const_cast<void*>(address));
  if (host < all.host_begin || host >= all.host_begin + all.size_bytes) return host;
  return all.device_begin + (host - all.host_begin);
}

npu_status memory_attach(void* begin, std::size_t size_bytes) {
  NPU_SIM_FAULT(memory_attach);
  if (const auto status = driver::host_memory_attach(begin, size_bytes); status != NPU_OK)
    return status;
  Memory& all = memory();
  all.file = memfd_create("npu-sim", MFD_CLOEXEC);
  if (all.file < 0) return fail_system("memfd_create");
  if (ftruncate(all.file, static_cast<off_t>(size_bytes)) != 0) return fail_system("ftruncate");
  void* view =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, all.file, 0);
  if (view == MAP_FAILED) return fail_system("mmap");
  all.host_begin = static_cast<char*>(begin);
  all.device_begin = static_cast<char*>(view);
  all.size_bytes = size_bytes;
  return NPU_OK;
}

off_t offset_of(const void* address) {
  return static_cast<const char*>(address) - memory().host_begin;
}

npu_status memory_commit(std::int32_t device, void* address, std::size_t size_bytes) {
  NPU_SIM_FAULT(memory_commit);
  if (const auto status = driver::check_device_index("memory_commit", device); status != NPU_OK)
    return status;
  if (const auto status = driver::check_range("memory_commit", address, size_bytes);
      status != NPU_OK)
    return status;
  void* mapped = mmap(address, size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory().file,
                      offset_of(address));
  return mapped == MAP_FAILED ? fail_system("mmap") : NPU_OK;
}

npu_status memory_decommit(std::int32_t device, void* address, std::size_t size_bytes) {
  NPU_SIM_FAULT(memory_decommit);
  if (const auto status = driver::check_device_index("memory_decommit", device); status != NPU_OK)
    return status;
  if (const auto status = driver::check_range("memory_decommit", address, size_bytes);
      status != NPU_OK)
    return status;
  if (fallocate(memory().file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(address),
                static_cast<off_t>(size_bytes)) != 0) {
    return fail_system("fallocate");
  }
  void* mapped = mmap(address, size_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return mapped == MAP_FAILED ? fail_system("mmap") : NPU_OK;
}

npu_status host_access_begin(std::int32_t device, void* address, std::size_t size_bytes) {
  NPU_SIM_FAULT(host_access_begin);
  if (const auto status = driver::check_device_index("host_access_begin", device); status != NPU_OK)
    return status;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (all.windows[address]++ > 0) return NPU_OK;
  if (mprotect(address, size_bytes, PROT_READ | PROT_WRITE) == 0) return NPU_OK;
  // The system limits the number of mappings; the next caller must not find a closed window.
  all.windows.erase(address);
  return fail_system("mprotect");
}

npu_status host_access_end(std::int32_t device, void* address, std::size_t size_bytes) {
  if (const auto status = driver::check_device_index("host_access_end", device); status != NPU_OK)
    return status;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.windows.find(address);
  if (found == all.windows.end())
    return fail(NPU_ERROR_ARGUMENT, "host_access_end: no window is open on this block");
  if (--found->second > 0) return NPU_OK;
  all.windows.erase(found);
  return mprotect(address, size_bytes, PROT_NONE) == 0 ? NPU_OK : fail_system("mprotect");
}

// --- work

// Enqueues `body` on the stream; without `done` it waits, and still runs on the stream's thread.
template <typename Body>
npu_status work(npu_stream* stream, npu_done done, void* context, Body body) {
  if (done != nullptr) {
    stream->queue.push([body, done, context] {
      delay();
      const npu_status status = body();
      done(context, status, status == NPU_OK ? "" : driver::last_error());
    });
    return NPU_OK;
  }
  std::pair<npu_status, std::string> outcome;
  stream->queue.push([body, &outcome] {
    delay();
    outcome.first = body();
    if (outcome.first != NPU_OK) outcome.second = driver::last_error();
  });
  stream->queue.wait();
  return outcome.first == NPU_OK ? NPU_OK : fail(outcome.first, outcome.second);
}

npu_status memory_copy(npu_stream* stream, void* to, const void* from, std::size_t size_bytes,
                       npu_done done, void* context) {
  return work(stream, done, context, [=]() -> npu_status {
    NPU_SIM_FAULT(memory_copy);
    std::memmove(device_view(to), device_view(from), size_bytes);
    return NPU_OK;
  });
}

npu_status request_create(npu_program* program, npu_request** request) {
  NPU_SIM_FAULT(request_create);
  const npu_status status = base().request_create(program, request);
  if (status == NPU_OK) note_request(*request, program);
  return status;
}

void request_destroy(npu_request* request) {
  forget_request(request);
  base().request_destroy(request);
}

npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context) {
  return work(stream, done, context, [=]() -> npu_status {
    NPU_SIM_FAULT(request_run);
    // On the stream's own thread, OpenVINO needs no stream and finds no other work.
    static thread_local npu_stream inner;
    const npu_status status = base().request_run(request, &inner, nullptr, nullptr);
    return status == NPU_OK ? flip_after_run(base(), request) : status;
  });
}

npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data) {
  NPU_SIM_FAULT(request_bind);
  return base().request_bind(request, direction, index, dtype, rank, dims, device_view(data));
}

// --- the device

const char* choice_reason() {
  return "NPU_DRIVER=sim requests it";
}

npu_status open_driver(const char* vendor_library, const char* requested_device) {
  const std::string requested = requested_device == nullptr ? "SIM" : requested_device;
  if (requested != "SIM" && requested != "SIM2") {
    return fail(NPU_ERROR_ABSENT, "NPU_DEVICE=" + requested +
                                      " was requested, but the sim driver has only: SIM, SIM2");
  }
  const npu_status status = base().open(vendor_library, "CPU");
  if (status == NPU_OK) driver::set_host_device_count(requested == "SIM2" ? 2 : 1);
  return status;
}

npu_status device_properties(std::int32_t device, npu_device_properties* properties) {
  NPU_SIM_FAULT(device_properties);
  const npu_status status = base().device_properties(device, properties);
  if (status != NPU_OK) return status;
  driver::copy_text(properties->name, sizeof(properties->name), "SIM");
  driver::copy_text(properties->full_name, sizeof(properties->full_name), "simulated device");
  properties->inline_below_ns = 0;  // everything is enqueued, for testing
  return NPU_OK;
}

// --- the table

// The name of a table function as a template argument.
template <std::size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&given)[N]) { std::copy_n(given, N, text); }
};

// A function of OpenVINO's table, preceded by injected failures.
template <Name kCall, auto kFunction, typename Signature>
struct Faulty;

template <Name kCall, auto kFunction, typename... Arguments>
struct Faulty<kCall, kFunction, npu_status (*npu_driver::*)(Arguments...)> {
  static npu_status call(Arguments... arguments) {
    if (const auto status = planted(kCall.text)) return *status;
    return (base().*kFunction)(arguments...);
  }
};

npu_driver make_table() {
  npu_driver table = base();
  table.name = "sim";
#define NPU_SIM_FAULTY(name) \
  table.name = Faulty<#name, &npu_driver::name, decltype(&npu_driver::name)>::call
  NPU_SIM_FAULTY(stream_create);
  NPU_SIM_FAULTY(stream_query);
  NPU_SIM_FAULTY(stream_synchronize);
  NPU_SIM_FAULTY(stream_wait_event);
  NPU_SIM_FAULTY(event_create);
  NPU_SIM_FAULTY(event_record);
  NPU_SIM_FAULTY(event_query);
  NPU_SIM_FAULTY(event_synchronize);
  NPU_SIM_FAULTY(event_time_ns);
  NPU_SIM_FAULTY(program_load);
  NPU_SIM_FAULTY(program_port_count);
  NPU_SIM_FAULTY(program_port);
  NPU_SIM_FAULTY(program_property);
  NPU_SIM_FAULTY(request_output);
  NPU_SIM_FAULTY(request_layers);
#undef NPU_SIM_FAULTY
  table.open = open_driver;
  table.choice_reason = choice_reason;
  table.device_properties = device_properties;
  table.memory_attach = memory_attach;
  table.memory_commit = memory_commit;
  table.memory_decommit = memory_decommit;
  table.host_access_begin = host_access_begin;
  table.host_access_end = host_access_end;
  table.memory_copy = memory_copy;
  table.request_create = request_create;
  table.request_destroy = request_destroy;
  table.request_bind = request_bind;
  table.request_run = request_run;
  return table;
}

}  // namespace

const npu_driver* driver_table() noexcept {
  static const npu_driver table = make_table();
  return &table;
}

}  // namespace npu::sim
