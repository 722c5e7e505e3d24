// An LRU list with an index.
#include "variants/program_cache.h"

namespace npu::ops::variants {

ProgramCache::Found ProgramCache::find(const void* op, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(Key{op, signature});
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->choice;
}

ProgramCache::Found ProgramCache::insert(const void* op, const Signature& signature, Found choice) {
  std::vector<Found> dropped;
  const std::lock_guard lock(mutex_);
  const Key key{op, signature};
  if (const auto found = by_key_.find(key); found != by_key_.end()) return found->second->choice;
  entries_.push_front({key, choice});
  by_key_.emplace(key, entries_.begin());
  dropped = trim();
  return choice;
}

void ProgramCache::clear() {
  std::list<Entry> dropped;
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  dropped.swap(entries_);
}

void ProgramCache::set_capacity(std::size_t capacity) {
  std::vector<Found> dropped;
  const std::lock_guard lock(mutex_);
  capacity_ = capacity;
  dropped = trim();
}

std::size_t ProgramCache::size() {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::vector<ProgramCache::Found> ProgramCache::trim() {
  std::vector<Found> dropped;
  while (entries_.size() > capacity_) {
    dropped.push_back(std::move(entries_.back().choice));
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return dropped;
}

ProgramCache& program_cache() {
  static auto* instance = new ProgramCache;
  return *instance;
}

}  // namespace npu::ops::variants
