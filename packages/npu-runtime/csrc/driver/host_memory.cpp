// Host memory needs no preparation: the device can use any committed address.
#include "driver/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "driver/host_device.h"
#include "driver/host_streams.h"

namespace npu::driver {
namespace {

std::uintptr_t attached_begin = 0;
std::uintptr_t attached_end = 0;

}  // namespace

npu_status check_range(const char* call, const void* address, std::size_t size_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (begin % page != 0 || size_bytes % page != 0) {
    return fail(NPU_ERROR_ARGUMENT,
                std::string(call) + ": address and size must be multiples of the page size");
  }
  if (begin < attached_begin || begin > attached_end || size_bytes > attached_end - begin) {
    return fail(NPU_ERROR_ARGUMENT,
                std::string(call) + ": the range is not inside the one that was attached");
  }
  return NPU_OK;
}

npu_status host_memory_attach(void* begin, std::size_t size_bytes) {
  attached_begin = reinterpret_cast<std::uintptr_t>(begin);
  attached_end = attached_begin + size_bytes;
  return NPU_OK;
}

npu_status host_memory_commit(std::int32_t device, void* address, std::size_t size_bytes) {
  if (const auto status = check_device_index("memory_commit", device); status != NPU_OK)
    return status;
  if (const auto status = check_range("memory_commit", address, size_bytes); status != NPU_OK)
    return status;
  if (mprotect(address, size_bytes, PROT_READ | PROT_WRITE) != 0) {
    return fail(NPU_ERROR_MEMORY, std::string("mprotect: ") + std::strerror(errno));
  }
  constexpr std::size_t kHugePage = 2U << 20U;
  // Only advice: without huge pages, the first access is slower.
  if (size_bytes >= kHugePage) madvise(address, size_bytes, MADV_HUGEPAGE);
  return NPU_OK;
}

npu_status host_memory_decommit(std::int32_t device, void* address, std::size_t size_bytes) {
  if (const auto status = check_device_index("memory_decommit", device); status != NPU_OK)
    return status;
  if (const auto status = check_range("memory_decommit", address, size_bytes); status != NPU_OK)
    return status;
  void* mapped = mmap(address, size_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) return fail(NPU_ERROR, std::string("mmap: ") + std::strerror(errno));
  return NPU_OK;
}

npu_status host_memory_copy(npu_stream* stream, void* to, const void* from, std::size_t size_bytes,
                            npu_done done, void* context) {
  if (done == nullptr) {
    stream->queue.wait();
    std::memmove(to, from, size_bytes);
    return NPU_OK;
  }
  stream->queue.push([=] {
    std::memmove(to, from, size_bytes);
    done(context, NPU_OK, "");
  });
  return NPU_OK;
}

}  // namespace npu::driver
