// Finished ops of one thread: a lock-free queue with one writer and one reader.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "observe/op_clock.h"
#include "observe/op_recorder.h"

namespace npu::observe {

// An op as written by its thread; ticks become times in a drain.
struct FinishedOp {
  const std::string* name;
  Ticks start;
  Ticks end;
  Ticks in_children;
  std::int64_t sequence;
  std::uint64_t forward_thread;
  OpKind kind;
  bool is_recursive;
};

class OpQueue {
 public:
  OpQueue() : first_(new Piece), last_(first_) {}
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;
  ~OpQueue() {
    while (first_ != nullptr)
      delete std::exchange(first_, first_->next.load(std::memory_order_acquire));
  }

  // For the writer. Counts ops that do not fit.
  void push(const FinishedOp& op) {
    std::size_t count = last_->count.load(std::memory_order_relaxed);
    if (count == kPieceOps) {
      if (pieces_.load(std::memory_order_relaxed) == kMostPieces) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      auto* const next = new Piece;
      pieces_.fetch_add(1, std::memory_order_relaxed);
      last_->next.store(next, std::memory_order_release);
      last_ = next;
      count = 0;
    }
    last_->ops[count] = op;
    last_->count.store(count + 1, std::memory_order_release);
  }

  // For the reader: visits each new op, in order of end.
  template <typename Visitor>
  void drain(Visitor&& visit) {
    while (true) {
      const std::size_t count = first_->count.load(std::memory_order_acquire);
      for (; read_ < count; ++read_)
        visit(first_->ops[read_]);
      if (count < kPieceOps) return;
      Piece* const next = first_->next.load(std::memory_order_acquire);
      if (next == nullptr) return;
      delete std::exchange(first_, next);
      pieces_.fetch_sub(1, std::memory_order_relaxed);
      read_ = 0;
    }
  }

  std::uint64_t take_dropped() { return dropped_.exchange(0, std::memory_order_relaxed); }

 private:
  // Below the size that the C library returns to the system at once: pages of a chunk are reused.
  static constexpr std::size_t kPieceOps = 1024;
  // Limits memory if the reader never drains: a million ops per thread.
  static constexpr std::size_t kMostPieces = 1024;

  struct Piece {
    std::array<FinishedOp, kPieceOps> ops;
    std::atomic<std::size_t> count{0};
    std::atomic<Piece*> next{nullptr};
  };

  Piece* first_;
  std::size_t read_ = 0;
  Piece* last_;
  std::atomic<std::size_t> pieces_{1};
  std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace npu::observe
