// Cache of the variant for each signature: a program, or the host kernel. A bounded LRU cache.
//
// npu_ops.variants decides in Python; variant_kernel.h runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "npu/program.h"
#include "variants/signature.h"

namespace npu::ops::variants {

// A program for a signature of an op, and the mapping of its ports to the op's arguments and
// results. Without a program, the host kernel runs.
struct Choice {
  std::shared_ptr<Program> program;
  // Argument positions in the order of the program's inputs; and the axis order of each, which a
  // signature determines.
  std::vector<std::uint32_t> inputs;
  std::vector<std::vector<std::int64_t>> input_orders;
  // For each result of the op, the program's output, kUndefined, or kEmpty: a tensor without
  // elements.
  static constexpr std::int32_t kUndefined = -1;
  static constexpr std::int32_t kEmpty = -2;
  std::vector<std::int32_t> results;
  // For each output of the program, the permutation that gives the op's result; empty for none.
  std::vector<std::vector<std::int64_t>> output_orders;
};

class ProgramCache {
 public:
  using Found = std::shared_ptr<const Choice>;

  // Null on a miss. `op` is the address of the op's plan.
  Found find(const void* op, const Signature& signature);
  // Keeps an existing entry, if another thread was faster; returns the entry kept.
  Found insert(const void* op, const Signature& signature, Found choice);
  void clear();
  // Evicts the least recently used entries beyond this size.
  void set_capacity(std::size_t capacity);
  std::size_t size();

 private:
  struct Key {
    const void* op;
    Signature signature;
    bool operator==(const Key& other) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return key.signature.hash ^ (reinterpret_cast<std::uintptr_t>(key.op) >> 4);
    }
  };
  struct Entry {
    Key key;
    Found choice;
  };

  // Returns evicted entries, to be destroyed without the lock: destroying a program may be slow.
  std::vector<Found> trim();

  std::mutex mutex_;
  std::size_t capacity_ = 512;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> by_key_;
};

// Never destroyed: kernels run until the very end of the process.
ProgramCache& program_cache();

}  // namespace npu::ops::variants
