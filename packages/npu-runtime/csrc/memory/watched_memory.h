// WatchedMemory: detects changes of bytes without a version counter. Pages are watched for writes
// if the system supports it; data around them, and all other bytes, are compared.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/written_pages.h"

namespace npu::memory {

struct Bytes {
  const std::byte* begin = nullptr;
  std::size_t count = 0;
};

// The memory must stay mapped while it is watched.
class WatchedMemory {
 public:
  // If `is_watching` is false, nothing is checked before suspect().
  WatchedMemory(std::vector<Bytes> spans, bool is_watching);
  ~WatchedMemory();
  WatchedMemory(const WatchedMemory&) = delete;
  WatchedMemory& operator=(const WatchedMemory&) = delete;

  // Whether all bytes are unchanged. Costs one check of the pages of each run of spans. All bytes
  // are read after a write to one, and those of pages that cannot be watched.
  bool is_unchanged();

  // Whether this span was found changed; later calls of is_unchanged do not reset it.
  bool is_changed(std::size_t span) const { return is_changed_[span] != 0; }

  // Makes the next check read all bytes of all watched memory.
  static void suspect_all() noexcept;

 private:
  using Digest = std::array<std::uint64_t, 2>;

  // Pages of adjacent spans.
  struct Run {
    PageRange pages;
    bool is_watchable = true;
  };

  // A part of a span outside these pages, compared with a copy.
  struct Copy {
    std::size_t span = 0;
    Bytes source;
    std::size_t place = 0;
  };

  // A part of a span in these pages.
  struct Block {
    std::size_t span = 0;
    std::size_t run = 0;
    Bytes source;
    Digest digest{};
  };

  void find_runs();
  void take(std::size_t span, PageRange pages);
  bool meets(PageRange pages) const;
  void protect();
  bool are_pages_written() const;
  bool compare_copies();
  bool compare_blocks(bool only_unwatchable);
  std::vector<Digest> digests(const std::vector<std::size_t>& blocks) const;

  const bool is_watching_;
  std::vector<Bytes> spans_;
  std::vector<Run> runs_;
  std::vector<Copy> copies_;
  std::vector<std::byte> copied_;
  std::vector<Block> blocks_;
  std::vector<char> is_changed_;
  std::atomic<bool> has_changed_{false};
  std::atomic<bool> is_suspect_{false};
  bool has_unwatchable_ = false;
};

}  // namespace npu::memory
