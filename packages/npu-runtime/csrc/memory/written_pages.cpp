#include "memory/written_pages.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/types.h>

namespace npu::memory {

namespace {

// From linux/userfaultfd.h and linux/fs.h (6.7): installed headers may be older than the kernel.
constexpr unsigned kUserModeOnly = 1;
constexpr __u64 kApi = 0xAA;
constexpr __u64 kWriteProtect = 1U << 0;
constexpr __u64 kReportUnpopulated = 1ULL << 13;
constexpr __u64 kAsynchronous = 1ULL << 15;
constexpr __u64 kModeWriteProtect = 1U << 1;
constexpr __u64 kOnlyWatched = 1U << 1;  // otherwise PAGEMAP_SCAN accepts unwatched memory
constexpr __u64 kIsWritten = 1U << 1;

struct Api {
  __u64 api, features, ioctls;
};
struct Range {
  __u64 start, len;
};
struct Register {
  Range range;
  __u64 mode, ioctls;
};
struct Protect {
  Range range;
  __u64 mode;
};
struct FoundPages {
  __u64 start, end, categories;
};
struct Scan {
  __u64 size, flags, start, end, walk_end, vec, vec_len, max_pages;
  __u64 category_inverted, category_mask, category_anyof_mask, return_mask;
};

constexpr unsigned long kApiCall = _IOWR(0xAA, 0x3F, Api);
constexpr unsigned long kRegisterCall = _IOWR(0xAA, 0x00, Register);
constexpr unsigned long kUnregisterCall = _IOR(0xAA, 0x01, Range);
constexpr unsigned long kProtectCall = _IOWR(0xAA, 0x06, Protect);
constexpr unsigned long kScanCall = _IOWR('f', 16, Scan);

struct Files {
  int faults = -1;
  int pages = -1;
};

std::atomic<bool> is_wanted{true};
std::mutex opening;
std::atomic<int> state{0};  // 0 not tried, 1 works, -1 does not
Files files;

void close_files() noexcept {
  if (files.faults >= 0) close(files.faults);
  if (files.pages >= 0) close(files.pages);
  files = Files();
}

// Both files refer to the parent's memory.
void forget_parent() noexcept {
  close_files();
  state.store(0, std::memory_order_relaxed);
}

bool open_files() noexcept {
#ifdef SYS_userfaultfd
  files.faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly));
#endif
  if (files.faults < 0) return false;
  Api api{kApi, kReportUnpopulated | kAsynchronous, 0};
  if (ioctl(files.faults, kApiCall, &api) != 0) return false;
  files.pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  return files.pages >= 0;
}

// Writes to a page and checks whether the write is detected.
bool passes_trial() noexcept {
  const std::size_t bytes = page_bytes();
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  auto* data = static_cast<volatile char*>(page);
  *data = 1;
  const auto begin = reinterpret_cast<std::uintptr_t>(page);
  const PageRange range{begin, begin + bytes};
  bool is_right = protect_pages(range) && !are_written(range);
  *data = 2;
  is_right = is_right && are_written(range) && protect_pages(range) && !are_written(range);
  release_pages(range);
  is_right = is_right && are_written(range);
  munmap(page, bytes);
  return is_right;
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool reports_written_pages() {
  if (!is_wanted.load(std::memory_order_relaxed)) return false;
  const int known = state.load(std::memory_order_acquire);
  if (known != 0) return known > 0;
  const std::lock_guard lock(opening);
  if (state.load(std::memory_order_acquire) == 0) {
    [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, forget_parent);
    const bool works = open_files() && passes_trial();
    if (!works) close_files();
    state.store(works ? 1 : -1, std::memory_order_release);
  }
  return state.load(std::memory_order_acquire) > 0;
}

void want_written_pages(bool is_wanted_now) {
  is_wanted.store(is_wanted_now, std::memory_order_relaxed);
}

bool protect_pages(PageRange range) noexcept {
  Register watch{{range.begin, range.end - range.begin}, kModeWriteProtect, 0};
  if (ioctl(files.faults, kRegisterCall, &watch) != 0) return false;
  Protect protect{{range.begin, range.end - range.begin}, kWriteProtect};
  return ioctl(files.faults, kProtectCall, &protect) == 0;
}

void release_pages(PageRange range) noexcept {
  Range all{range.begin, range.end - range.begin};
  ioctl(files.faults, kUnregisterCall, &all);
}

bool are_written(PageRange range) noexcept {
  FoundPages found{};
  Scan scan{};
  scan.size = sizeof(scan);
  scan.flags = kOnlyWatched;
  scan.start = range.begin;
  scan.end = range.end;
  scan.vec = reinterpret_cast<std::uintptr_t>(&found);
  scan.vec_len = 1;
  scan.max_pages = 1;
  scan.category_mask = kIsWritten;
  scan.return_mask = kIsWritten;
  return ioctl(files.pages, kScanCall, &scan) != 0;
}

std::vector<PageRange> shared_mappings() {
  std::vector<PageRange> found;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return {{0, UINTPTR_MAX}};
  unsigned long begin = 0;
  unsigned long end = 0;
  char access[5] = {};
  while (std::fscanf(maps, "%lx-%lx %4s%*[^\n]", &begin, &end, access) == 3) {
    if (access[3] == 's') found.push_back({begin, end});
  }
  std::fclose(maps);
  return found;
}

}  // namespace npu::memory
