// The simulated device's memory (one file mapped twice: the device's view is always open, the
// host's only inside windows), its faults and delays, and its table, which hands programs on to the
// OpenVINO driver.
#include "driver/sim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "driver/host_streams.h"
#include "driver/openvino.h"

namespace npu::sim {
namespace {

thread_local std::string last_error_text;

npu_status fail(npu_status status, std::string text) {
  last_error_text = std::move(text);
  return status;
}

npu_status fail_system(const char* call) {
  return fail(errno == ENOMEM ? NPU_ERROR_MEMORY : NPU_ERROR,
              std::string(call) + ": " + std::strerror(errno));
}

// --- faults and delays

struct Fault {
  npu_status status;
  std::int64_t skip;
  std::int64_t times;
};

struct Faults {
  std::mutex mutex;
  std::unordered_map<std::string, Fault> by_call;
  std::int64_t least_us = 0;
  std::int64_t most_us = 0;
  std::mt19937_64 random;
};

Faults& faults() {
  static auto* instance = new Faults;
  return *instance;
}

// The planted failure of a call, if its turn has come.
std::optional<npu_status> planted(const char* call) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_call.find(call);
  if (found == all.by_call.end()) return std::nullopt;
  Fault& fault = found->second;
  if (fault.skip > 0) {
    --fault.skip;
    return std::nullopt;
  }
  const npu_status status = fault.status;
  if (--fault.times <= 0) all.by_call.erase(found);
  last_error_text = std::string(call) + " failed because a test planted it";
  return status;
}

#define NPU_SIM_FAULT(call)                                     \
  do {                                                          \
    if (const auto planted_ = planted(#call)) return *planted_; \
  } while (false)

void delay() {
  Faults& all = faults();
  std::int64_t wait_us = 0;
  {
    const std::lock_guard lock(all.mutex);
    if (all.most_us > 0) {
      wait_us = std::uniform_int_distribution<std::int64_t>(all.least_us, all.most_us)(all.random);
    }
  }
  if (wait_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
}

// --- memory

struct Memory {
  std::mutex mutex;
  int file = -1;
  char* host_begin = nullptr;
  char* device_begin = nullptr;
  std::size_t size_bytes = 0;
  std::map<void*, int> windows;  // open windows by the start of their block
};

Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

// Where the device sees what the host knows as `address`. Other memory is the same to both.
void* device_view(const void* address) {
  const Memory& all = memory();
  auto* host = static_cast<char*>(const_cast<void*>(address));
  if (host < all.host_begin || host >= all.host_begin + all.size_bytes) return host;
  return all.device_begin + (host - all.host_begin);
}

npu_status memory_attach(void* begin, std::size_t size_bytes) {
  NPU_SIM_FAULT(memory_attach);
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

npu_status memory_commit(std::int32_t, void* address, std::size_t size_bytes) {
  NPU_SIM_FAULT(memory_commit);
  void* mapped = mmap(address, size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory().file,
                      offset_of(address));
  return mapped == MAP_FAILED ? fail_system("mmap") : NPU_OK;
}

npu_status memory_decommit(std::int32_t, void* address, std::size_t size_bytes) {
  NPU_SIM_FAULT(memory_decommit);
  if (fallocate(memory().file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(address),
                static_cast<off_t>(size_bytes)) != 0) {
    return fail_system("fallocate");
  }
  void* mapped = mmap(address, size_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return mapped == MAP_FAILED ? fail_system("mmap") : NPU_OK;
}

npu_status host_access_begin(std::int32_t, void* address, std::size_t size_bytes) {
  NPU_SIM_FAULT(host_access_begin);
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (all.windows[address]++ > 0) return NPU_OK;
  if (mprotect(address, size_bytes, PROT_READ | PROT_WRITE) == 0) return NPU_OK;
  // The system maps only so many ranges; the next who asks must not find a window that is not open.
  all.windows.erase(address);
  return fail_system("mprotect");
}

npu_status host_access_end(std::int32_t, void* address, std::size_t size_bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.windows.find(address);
  if (found == all.windows.end())
    return fail(NPU_ERROR_ARGUMENT, "host_access_end without a window");
  if (--found->second > 0) return NPU_OK;
  all.windows.erase(found);
  return mprotect(address, size_bytes, PROT_NONE) == 0 ? NPU_OK : fail_system("mprotect");
}

// --- work

const npu_driver& programs() {
  return *openvino::driver_table();
}

// Puts `body` on the stream; with no `done` it waits, and still runs on the stream's thread.
template <typename Body>
npu_status work(npu_stream* stream, npu_done done, void* context, Body body) {
  if (done != nullptr) {
    stream->queue.push([body, done, context] {
      delay();
      const npu_status status = body();
      done(context, status, last_error_text.c_str());
    });
    return NPU_OK;
  }
  std::pair<npu_status, std::string> outcome;
  stream->queue.push([body, &outcome] {
    delay();
    outcome.first = body();
    outcome.second = last_error_text;
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

npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context) {
  return work(stream, done, context, [=]() -> npu_status {
    NPU_SIM_FAULT(request_run);
    // On the stream's own thread OpenVINO needs no stream; it finds this one empty of other work.
    static thread_local npu_stream inner;
    const npu_status status = programs().request_run(request, &inner, nullptr, nullptr);
    if (status != NPU_OK) last_error_text = programs().last_error();
    return status;
  });
}

// --- the table

const char* last_error() {
  return last_error_text.c_str();
}
const char* choice_reason() {
  return "NPU_DRIVER=sim asks for it";
}

std::int32_t devices = 1;

npu_status open_driver(const char* vendor_library, const char* requested_device) {
  if (requested_device != nullptr && std::strncmp(requested_device, "SIM", 3) != 0) {
    return fail(NPU_ERROR_ABSENT, std::string("NPU_DEVICE=") + requested_device +
                                      " was asked for, and the sim driver has only: SIM, SIM2");
  }
  if (requested_device != nullptr && std::strcmp(requested_device, "SIM2") == 0) devices = 2;
  const npu_status status = programs().open(vendor_library, "CPU");
  return status == NPU_OK ? NPU_OK : fail(status, programs().last_error());
}

npu_status device_count(std::int32_t* count) {
  *count = devices;
  return NPU_OK;
}

npu_status device_properties(std::int32_t device, npu_device_properties* properties) {
  NPU_SIM_FAULT(device_properties);
  const npu_status status = programs().device_properties(0, properties);
  if (status != NPU_OK) return fail(status, programs().last_error());
  std::strcpy(properties->name, "SIM");
  std::strcpy(properties->full_name, "simulated device");
  properties->inline_below_ns = 0;  // everything is enqueued, so that everything is tested
  static_cast<void>(device);
  return NPU_OK;
}

// Hands a call on to OpenVINO with its message.
template <typename... Arguments>
npu_status pass_on(npu_status (*call)(Arguments...), Arguments... arguments) {
  const npu_status status = call(arguments...);
  return status == NPU_OK ? NPU_OK : fail(status, programs().last_error());
}

npu_status stream_create(std::int32_t device, std::int32_t priority, npu_stream** stream) {
  NPU_SIM_FAULT(stream_create);
  return driver::host_stream_create(device, priority, stream);
}

npu_status stream_query(npu_stream* stream, std::int32_t* is_idle) {
  NPU_SIM_FAULT(stream_query);
  return driver::host_stream_query(stream, is_idle);
}

npu_status stream_synchronize(npu_stream* stream) {
  NPU_SIM_FAULT(stream_synchronize);
  return driver::host_stream_synchronize(stream);
}

npu_status stream_wait_event(npu_stream* stream, npu_event* event) {
  NPU_SIM_FAULT(stream_wait_event);
  return driver::host_stream_wait_event(stream, event);
}

npu_status event_create(std::int32_t device, npu_event** event) {
  NPU_SIM_FAULT(event_create);
  return driver::host_event_create(device, event);
}

npu_status event_record(npu_event* event, npu_stream* stream) {
  NPU_SIM_FAULT(event_record);
  return driver::host_event_record(event, stream);
}

npu_status event_query(npu_event* event, std::int32_t* is_done) {
  NPU_SIM_FAULT(event_query);
  return driver::host_event_query(event, is_done);
}

npu_status event_synchronize(npu_event* event) {
  NPU_SIM_FAULT(event_synchronize);
  return driver::host_event_synchronize(event);
}

npu_status event_time_ns(npu_event* event, std::int64_t* time_ns) {
  NPU_SIM_FAULT(event_time_ns);
  return driver::host_event_time_ns(event, time_ns);
}

npu_status program_load(std::int32_t, const npu_program_source* source, npu_program** program) {
  NPU_SIM_FAULT(program_load);
  return pass_on(programs().program_load, std::int32_t{0}, source, program);
}

void program_unload(npu_program* program) {
  programs().program_unload(program);
}

npu_status program_port_count(const npu_program* program, npu_direction direction,
                              std::size_t* count) {
  NPU_SIM_FAULT(program_port_count);
  return pass_on(programs().program_port_count, program, direction, count);
}

npu_status program_port(const npu_program* program, npu_direction direction, std::size_t index,
                        npu_port* port) {
  NPU_SIM_FAULT(program_port);
  return pass_on(programs().program_port, program, direction, index, port);
}

npu_status program_property(const npu_program* program, const char* key, char* value,
                            std::size_t value_bytes) {
  NPU_SIM_FAULT(program_property);
  return pass_on(programs().program_property, program, key, value, value_bytes);
}

npu_status request_create(npu_program* program, npu_request** request) {
  NPU_SIM_FAULT(request_create);
  return pass_on(programs().request_create, program, request);
}

void request_destroy(npu_request* request) {
  programs().request_destroy(request);
}

npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data) {
  NPU_SIM_FAULT(request_bind);
  return pass_on(programs().request_bind, request, direction, index, dtype, rank, dims,
                 device_view(data));
}

npu_status request_output(npu_request* request, std::size_t index, npu_port* port,
                          const void** data) {
  NPU_SIM_FAULT(request_output);
  return pass_on(programs().request_output, request, index, port, data);
}

npu_status request_layers(npu_request* request, npu_layer_record* records, std::size_t capacity,
                          std::size_t* count) {
  NPU_SIM_FAULT(request_layers);
  return pass_on(programs().request_layers, request, records, capacity, count);
}

constexpr npu_driver kTable{
    .abi_version = NPU_DRIVER_ABI_VERSION,
    .name = "sim",
    .last_error = last_error,
    .open = open_driver,
    .choice_reason = choice_reason,
    .device_count = device_count,
    .device_properties = device_properties,
    .memory_attach = memory_attach,
    .memory_commit = memory_commit,
    .memory_decommit = memory_decommit,
    .host_access_begin = host_access_begin,
    .host_access_end = host_access_end,
    .memory_copy = memory_copy,
    .stream_create = stream_create,
    .stream_destroy = driver::host_stream_destroy,
    .stream_query = stream_query,
    .stream_synchronize = stream_synchronize,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = driver::host_event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_time_ns = event_time_ns,
    .program_load = program_load,
    .program_unload = program_unload,
    .program_port_count = program_port_count,
    .program_port = program_port,
    .program_property = program_property,
    .request_create = request_create,
    .request_destroy = request_destroy,
    .request_bind = request_bind,
    .request_run = request_run,
    .request_output = request_output,
    .request_layers = request_layers,
};

}  // namespace

const npu_driver* driver_table() noexcept {
  return &kTable;
}

void set_delay(std::int64_t least_us, std::int64_t most_us, std::uint64_t seed) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.least_us = least_us;
  all.most_us = most_us;
  all.random.seed(seed);
}

void inject_failure(std::string call, npu_status status, std::int64_t skip, std::int64_t times) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.by_call[std::move(call)] = {status, skip, times};
}

void clear() {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.by_call.clear();
  all.least_us = all.most_us = 0;
}

}  // namespace npu::sim
