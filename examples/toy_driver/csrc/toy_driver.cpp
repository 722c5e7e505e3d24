// The toy chip's driver: failures, the device, its memory, and the table.
//
// Streams and events are in toy_streams.cpp, programs and requests in toy_requests.cpp; the chip's
// arithmetic is in toy_program.cpp. npu/driver.h documents each function.
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "toy_parts.h"

namespace toy {
namespace {

thread_local std::string last_error_text;
constexpr std::int32_t kDevices = 1;

}  // namespace

npu_status fail(npu_status status, const std::string& sentence) {
  last_error_text = sentence;
  return status;
}

const char* last_error() {
  return last_error_text.c_str();
}

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void copy_text(char* to, std::size_t bytes, const std::string& text) {
  if (bytes == 0) return;
  const std::size_t n = std::min(bytes - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

npu_status check_device(const char* call, std::int32_t device) {
  if (device >= 0 && device < kDevices) return NPU_OK;
  return fail(NPU_ERROR_ARGUMENT,
              std::string(call) + ": device " + std::to_string(device) + " does not exist");
}

namespace {

// --8<-- [start:device]
npu_status open_driver(const char*, const char* requested) {
  if (requested == nullptr || std::string(requested) == "TOY") return NPU_OK;
  return fail(NPU_ERROR_ABSENT, "NPU_DEVICE=" + std::string(requested) +
                                    " was requested, but the toy driver has only: TOY");
}

const char* choice_reason() {
  return "the toy driver is installed";
}

npu_status device_count(std::int32_t* count) {
  *count = kDevices;
  return NPU_OK;
}

npu_status device_properties(std::int32_t device, npu_device_properties* properties) {
  if (const auto status = check_device("device_properties", device)) return status;
  *properties = {};
  copy_text(properties->name, sizeof(properties->name), "TOY");
  copy_text(properties->full_name, sizeof(properties->full_name), "toy chip, a thread");
  copy_text(properties->driver_version, sizeof(properties->driver_version), "1.0");
  copy_text(properties->capabilities, sizeof(properties->capabilities), "FP32");
  struct sysinfo info{};
  if (sysinfo(&info) == 0) properties->memory_bytes = std::uint64_t{info.totalram} * info.mem_unit;
  properties->inline_below_ns = 0;  // every run is enqueued
  return NPU_OK;
}
// --8<-- [end:device]

// --8<-- [start:memory]
std::uintptr_t attached_begin = 0;
std::uintptr_t attached_end = 0;

npu_status memory_attach(void* begin, std::size_t size_bytes) {
  attached_begin = reinterpret_cast<std::uintptr_t>(begin);
  attached_end = attached_begin + size_bytes;
  return NPU_OK;
}

npu_status check_pages(const char* call, std::int32_t device, void* address, std::size_t bytes) {
  if (const auto status = check_device(call, device)) return status;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (begin % page == 0 && bytes % page == 0 && begin >= attached_begin && begin <= attached_end &&
      bytes <= attached_end - begin)
    return NPU_OK;
  return fail(NPU_ERROR_ARGUMENT, std::string(call) + ": not whole pages of the attached range");
}

// A chip with memory of its own would map it here.
npu_status memory_commit(std::int32_t device, void* address, std::size_t bytes) {
  if (const auto status = check_pages("memory_commit", device, address, bytes)) return status;
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0) return NPU_OK;
  return fail(NPU_ERROR_MEMORY, std::string("mprotect: ") + std::strerror(errno));
}

npu_status memory_decommit(std::int32_t device, void* address, std::size_t bytes) {
  if (const auto status = check_pages("memory_decommit", device, address, bytes)) return status;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(address, bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED) return NPU_OK;
  return fail(NPU_ERROR, std::string("mmap: ") + std::strerror(errno));
}
// --8<-- [end:memory]

// --8<-- [start:table]
constexpr npu_driver kTable{
    .abi_version = NPU_DRIVER_ABI_VERSION,
    .name = "toy",
    .last_error = last_error,
    .open = open_driver,
    .choice_reason = choice_reason,
    .device_count = device_count,
    .device_properties = device_properties,
    .memory_attach = memory_attach,
    .memory_commit = memory_commit,
    .memory_decommit = memory_decommit,
    .host_access_begin = nullptr,  // the host may always use the chip's memory
    .host_access_end = nullptr,
    .memory_copy = memory_copy,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .stream_synchronize = stream_synchronize,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = event_destroy,
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
}  // namespace toy

extern "C" __attribute__((visibility("default"))) const npu_driver* npu_driver_table() {
  return &toy::kTable;
}
// --8<-- [end:table]
