// The handle of a collective run by Gloo: Gloo's own handle, with npu tensors.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/host_view.h"

namespace npu::distributed {

// All calls are forwarded to Gloo's handle, but results and futures have the npu tensors, because a
// consumer of the future (for example a hook of DistributedDataParallel) continues to compute with
// them.
class ForwardedWork final : public c10d::Work {
 public:
  // `results` has the structure of Gloo's results: one list of tensors for most operations.
  // `copies` is null for operations without outputs.
  ForwardedWork(c10d::OpType type, c10::intrusive_ptr<c10d::Work> gloo, TensorLists results,
                std::shared_ptr<OutputCopies> copies);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  Tensors result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  void write_back() const;

  const c10::intrusive_ptr<c10d::Work> gloo_;
  const TensorLists results_;
  const std::shared_ptr<OutputCopies> copies_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several operations under one handle, done when all are done.
class JoinedWork final : public c10d::Work {
 public:
  explicit JoinedWork(std::vector<c10::intrusive_ptr<c10d::Work>> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  Tensors result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace npu::distributed
