#include "memory/watched_memory.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <ATen/Parallel.h>

namespace npu::memory {

namespace {

// Spans this close to each other are watched as one; the allocator's metadata is between them.
constexpr std::size_t kNear = 256;
// Comparing so few bytes costs less than a system call.
constexpr std::size_t kSmall = 16384;
constexpr std::size_t kBlock = std::size_t{1} << 20;

std::mutex registry_lock;
std::vector<WatchedMemory*>& registry() {
  static auto* const all = new std::vector<WatchedMemory*>();  // never destroyed: see exit
  return *all;
}

std::uintptr_t address(const std::byte* place) {
  return reinterpret_cast<std::uintptr_t>(place);
}

PageRange whole_pages(std::uintptr_t begin, std::uintptr_t end) {
  const std::uintptr_t page = page_bytes();
  return {(begin + page - 1) / page * page, end / page * page};
}

bool overlap(PageRange one, PageRange other) {
  return one.begin < other.end && other.begin < one.end;
}

// XXH3's step on 16 lanes: each is rotated, combined with its neighbour's word, and a product of
// its halves is added. The step is a bijection per lane, so a change of one block is detected.
constexpr std::size_t kLanes = 16;
constexpr std::size_t kStep = kLanes * sizeof(std::uint64_t);
constexpr std::uint64_t kKey = 0x9E3779B185EBCA87U;

void add_plain(const std::byte* data, std::size_t count, std::uint64_t* lanes) {
  for (std::size_t at = 0; at < count; at += kStep) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), data + at, kStep);
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t keyed = words[i] ^ kKey;
      const std::uint64_t rotated = (lanes[i] << 13) | (lanes[i] >> 51);
      lanes[i] = rotated + words[i ^ 1] + (keyed & 0xFFFFFFFFU) * (keyed >> 32);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_avx2(const std::byte* data, std::size_t count,
                                              std::uint64_t* lanes) {
  const __m256i key = _mm256_set1_epi64x(static_cast<long long>(kKey));
  __m256i sums[4];
  for (int i = 0; i < 4; ++i)
    sums[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes) + i);
  for (std::size_t at = 0; at < count; at += kStep) {
    for (int i = 0; i < 4; ++i) {
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at) + i);
      const __m256i keyed = _mm256_xor_si256(word, key);
      const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
      const __m256i rotated =
          _mm256_or_si256(_mm256_slli_epi64(sums[i], 13), _mm256_srli_epi64(sums[i], 51));
      const __m256i beside = _mm256_shuffle_epi32(word, 0x4E);
      sums[i] = _mm256_add_epi64(_mm256_add_epi64(rotated, beside), product);
    }
  }
  for (int i = 0; i < 4; ++i)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes) + i, sums[i]);
}
#endif

void add_lanes(const std::byte* data, std::size_t count, std::uint64_t* lanes) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return add_avx2(data, count, lanes);
#endif
  add_plain(data, count, lanes);
}

std::array<std::uint64_t, 2> digest_of(Bytes bytes) {
  std::array<std::uint64_t, kLanes> lanes;
  std::iota(lanes.begin(), lanes.end(), bytes.count);
  const std::size_t whole = bytes.count / kStep * kStep;
  add_lanes(bytes.begin, whole, lanes.data());
  if (whole < bytes.count) {
    std::array<std::byte, kStep> rest{};
    std::memcpy(rest.data(), bytes.begin + whole, bytes.count - whole);
    add_lanes(rest.data(), kStep, lanes.data());
  }
  std::array<std::uint64_t, 2> found{0, 0};
  for (const std::uint64_t lane : lanes) {
    found[0] = (found[0] ^ lane) * 0xC2B2AE3D27D4EB4FU;
    found[0] ^= found[0] >> 29;
    found[1] = (found[1] + lane) * 0x165667B19E3779F9U;
    found[1] ^= found[1] >> 32;
  }
  return found;
}

}  // namespace

WatchedMemory::WatchedMemory(std::vector<Bytes> spans, bool is_watching)
    : is_watching_(is_watching), spans_(std::move(spans)), is_changed_(spans_.size(), 0) {
  find_runs();
  {
    const std::lock_guard lock(registry_lock);
    registry().push_back(this);
    protect();
  }
  // After the pages are watched: a concurrent write is then detected.
  for (const Copy& copy : copies_)
    std::memcpy(copied_.data() + copy.place, copy.source.begin, copy.source.count);
  std::vector<std::size_t> all(blocks_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const std::vector<Digest> found = digests(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    blocks_[i].digest = found[i];
}

WatchedMemory::~WatchedMemory() {
  const std::lock_guard lock(registry_lock);
  std::erase(registry(), this);
  if (!is_watching_ || !reports_written_pages()) return;
  for (const Run& run : runs_) {
    const bool is_shared =
        std::any_of(registry().begin(), registry().end(),
                    [&](const WatchedMemory* other) { return other->meets(run.pages); });
    if (run.is_watchable && !is_shared) release_pages(run.pages);
  }
}

void WatchedMemory::suspect_all() noexcept {
  const std::lock_guard lock(registry_lock);
  for (WatchedMemory* one : registry())
    one->is_suspect_.store(true, std::memory_order_release);
}

bool WatchedMemory::meets(PageRange pages) const {
  return is_watching_ && std::any_of(runs_.begin(), runs_.end(),
                                     [&](const Run& run) { return overlap(run.pages, pages); });
}

void WatchedMemory::find_runs() {
  std::vector<std::size_t> order(spans_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return spans_[one].begin < spans_[other].begin;
  });
  const std::vector<PageRange> shared = shared_mappings();
  std::size_t next = 0;
  while (next < order.size()) {
    const std::uintptr_t begin = address(spans_[order[next]].begin);
    std::uintptr_t end = begin;
    std::size_t last = next;
    for (; last < order.size(); ++last) {
      const Bytes& span = spans_[order[last]];
      if (last > next && address(span.begin) > end + kNear) break;
      end = std::max(end, address(span.begin) + span.count);
    }
    PageRange pages = whole_pages(begin, end);
    if (end - begin <= kSmall) pages = PageRange();
    if (!pages.is_empty()) {
      const bool is_shared = std::any_of(shared.begin(), shared.end(),
                                         [&](PageRange range) { return overlap(range, pages); });
      runs_.push_back({pages, !is_shared});
    }
    for (; next < last; ++next)
      take(order[next], pages);
  }
}

// Copies the data around the pages, and hashes the data in them.
void WatchedMemory::take(std::size_t span, PageRange pages) {
  const Bytes& bytes = spans_[span];
  const std::uintptr_t begin = address(bytes.begin);
  const std::uintptr_t end = begin + bytes.count;
  const std::uintptr_t first = pages.is_empty() ? end : std::clamp(pages.begin, begin, end);
  const std::uintptr_t last = pages.is_empty() ? end : std::clamp(pages.end, first, end);
  const auto copy = [&](std::uintptr_t from, std::uintptr_t to) {
    if (from == to) return;
    copies_.push_back({span, {bytes.begin + (from - begin), to - from}, copied_.size()});
    copied_.resize(copied_.size() + (to - from));
  };
  copy(begin, first);
  copy(last, end);
  for (std::uintptr_t at = first; at < last; at += kBlock) {
    const std::size_t count = std::min<std::size_t>(kBlock, last - at);
    blocks_.push_back({span, runs_.size() - 1, {bytes.begin + (at - begin), count}, {}});
  }
}

// Watches written pages again. Precondition: the registry is locked. Other watchers of the same
// pages would miss the write, so they read their data.
void WatchedMemory::protect() {
  is_suspect_.store(false, std::memory_order_release);
  const bool can_watch = is_watching_ && reports_written_pages();
  for (Run& run : runs_) {
    if (!can_watch) run.is_watchable = false;
    if (!run.is_watchable || !are_written(run.pages)) continue;
    for (WatchedMemory* other : registry())
      if (other != this && other->meets(run.pages))
        other->is_suspect_.store(true, std::memory_order_release);
    run.is_watchable = protect_pages(run.pages);
  }
  has_unwatchable_ =
      std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return !run.is_watchable; });
}

bool WatchedMemory::are_pages_written() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const Run& run) { return run.is_watchable && are_written(run.pages); });
}

bool WatchedMemory::compare_copies() {
  bool is_equal = true;
  for (const Copy& copy : copies_) {
    const std::byte* kept = copied_.data() + copy.place;
    if (std::memcmp(kept, copy.source.begin, copy.source.count) == 0) continue;
    is_changed_[copy.span] = 1;
    is_equal = false;
  }
  return is_equal;
}

std::vector<WatchedMemory::Digest> WatchedMemory::digests(
    const std::vector<std::size_t>& blocks) const {
  std::vector<Digest> found(blocks.size());
  at::parallel_for(
      0, static_cast<std::int64_t>(blocks.size()), 2, [&](std::int64_t from, std::int64_t to) {
        for (auto i = static_cast<std::size_t>(from); i < static_cast<std::size_t>(to); ++i)
          found[i] = digest_of(blocks_[blocks[i]].source);
      });
  return found;
}

bool WatchedMemory::compare_blocks(bool only_unwatchable) {
  std::vector<std::size_t> read;
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (!only_unwatchable || !runs_[blocks_[i].run].is_watchable) read.push_back(i);
  const std::vector<Digest> found = digests(read);
  bool is_equal = true;
  for (std::size_t i = 0; i < read.size(); ++i) {
    const Block& block = blocks_[read[i]];
    if (found[i] == block.digest) continue;
    is_changed_[block.span] = 1;
    is_equal = false;
  }
  return is_equal;
}

bool WatchedMemory::is_unchanged() {
  if (has_changed_.load(std::memory_order_acquire)) return false;
  const bool is_suspect = is_suspect_.load(std::memory_order_acquire);
  if (!is_watching_ && !is_suspect) return true;
  bool is_equal = compare_copies();
  if (is_equal && (is_suspect || are_pages_written())) {
    const std::lock_guard lock(registry_lock);
    protect();
    is_equal = compare_blocks(/*only_unwatchable=*/false);
  } else if (is_equal && has_unwatchable_) {
    is_equal = compare_blocks(/*only_unwatchable=*/true);
  }
  if (!is_equal) has_changed_.store(true, std::memory_order_release);
  return is_equal;
}

}  // namespace npu::memory
