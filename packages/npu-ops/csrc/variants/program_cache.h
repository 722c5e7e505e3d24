// The body that serves a call, cached per signature: a program, or the host kernel. Bounded; the
// least recently used goes first.
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

// A program for one signature of one op, and how its ports answer to the op's arguments and
// results. Without a program the host kernel serves.
struct Choice {
  std::shared_ptr<Program> program;
  // Positions of arguments, in the order of the program's inputs; and the axis order of each, which
  // is the same in all calls of one signature.
  std::vector<std::uint32_t> inputs;
  std::vector<std::vector<std::int64_t>> input_orders;
  // Per result of the op the program's output, kUndefined, or kEmpty: a tensor of no elements.
  static constexpr std::int32_t kUndefined = -1;
  static constexpr std::int32_t kEmpty = -2;
  std::vector<std::int32_t> results;
  // Per output of the program the permutation that makes the op's result of it; empty for none.
  std::vector<std::vector<std::int64_t>> output_orders;
};

class ProgramCache {
 public:
  using Found = std::shared_ptr<const Choice>;

  // Null when nothing is remembered. `op` is the address of the op's plan.
  Found find(const void* op, const Signature& signature);
  // Keeps what is there already, if another thread was faster; returns what is kept.
  Found insert(const void* op, const Signature& signature, Found choice);
  void clear();
  // Forgets the least recently used beyond this size.
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

  // Returns what fell out, to be destroyed without the lock: destroying a program may take a while.
  std::vector<Found> trim();

  std::mutex mutex_;
  std::size_t capacity_ = 512;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> by_key_;
};

// Never destroyed: kernels run until the very end of the process.
ProgramCache& program_cache();

}  // namespace npu::ops::variants
