// Handles of collectives: Gloo's, with npu tensors in place of CPU tensors.
#include "distributed/forwarded_work.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace npu::distributed {

namespace {

using Future = c10::ivalue::Future;

std::vector<c10::Device> devices_of(const TensorLists& lists) {
  std::set<c10::DeviceIndex> indices;
  for (const Tensors& tensors : lists) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.device().is_privateuseone()) indices.insert(tensor.device().index());
    }
  }
  std::vector<c10::Device> devices;
  for (const c10::DeviceIndex index : indices)
    devices.emplace_back(c10::DeviceType::PrivateUse1, index);
  return devices;
}

// Gloo's future has one list of tensors, and a list of lists only if there are several.
c10::IValue value_of(const TensorLists& results) {
  if (results.size() > 1) return c10::IValue(results);
  return c10::IValue(results.empty() ? Tensors{} : results.front());
}

c10::TypePtr type_of(const TensorLists& results) {
  const c10::TypePtr tensors = c10::ListType::create(c10::TensorType::get());
  return results.size() > 1 ? c10::ListType::create(tensors) : tensors;
}

}  // namespace

ForwardedWork::ForwardedWork(c10d::OpType type, c10::intrusive_ptr<c10d::Work> gloo,
                             TensorLists results, std::shared_ptr<OutputCopies> copies)
    : Work(-1, type),
      gloo_(std::move(gloo)),
      results_(std::move(results)),
      copies_(std::move(copies)) {}

void ForwardedWork::write_back() const {
  if (copies_) copies_->write_back();
}

bool ForwardedWork::isCompleted() {
  const bool is_done = gloo_->isCompleted();
  if (is_done && gloo_->isSuccess()) write_back();
  return is_done;
}
bool ForwardedWork::isSuccess() const {
  return gloo_->isSuccess();
}
std::exception_ptr ForwardedWork::exception() const {
  return gloo_->exception();
}
int ForwardedWork::sourceRank() const {
  return gloo_->sourceRank();
}
void ForwardedWork::synchronize() {
  gloo_->synchronize();
  if (gloo_->isCompleted() && gloo_->isSuccess()) write_back();
}
bool ForwardedWork::wait(std::chrono::milliseconds timeout) {
  const bool is_done = gloo_->wait(timeout);
  if (is_done) write_back();
  return is_done;
}
void ForwardedWork::abort() {
  gloo_->abort();
}
float ForwardedWork::getDuration() const {
  return gloo_->getDuration();
}
std::uint64_t ForwardedWork::getSequencenumber() const {
  return gloo_->getSequencenumber();
}

Tensors ForwardedWork::result() {
  static_cast<void>(gloo_->result());  // refuses work that is not finished
  write_back();
  return results_.empty() ? Tensors{} : results_.front();
}

c10::intrusive_ptr<Future> ForwardedWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (!future_) {
    auto future = c10::make_intrusive<Future>(type_of(results_), devices_of(results_));
    gloo_->getFuture()->addCallback([future, results = results_, copies = copies_](Future& done) {
      if (done.hasError()) {
        future->setError(done.exception_ptr());
      } else {
        if (copies) copies->write_back();
        future->markCompleted(value_of(results));
      }
    });
    future_ = std::move(future);
  }
  return future_;
}

c10::intrusive_ptr<Future> ForwardedWork::getFutureResult() {
  return gloo_->getFutureResult();
}

JoinedWork::JoinedWork(std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    : Work(-1, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

bool JoinedWork::isCompleted() {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->isCompleted(); });
}

bool JoinedWork::isSuccess() const {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr JoinedWork::exception() const {
  for (const auto& part : parts_) {
    if (std::exception_ptr error = part->exception()) return error;
  }
  return nullptr;
}

Tensors JoinedWork::result() {
  Tensors all;
  for (const auto& part : parts_) {
    Tensors tensors = part->result();
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

void JoinedWork::synchronize() {
  for (const auto& part : parts_)
    part->synchronize();
}

bool JoinedWork::wait(std::chrono::milliseconds timeout) {
  bool is_done = true;
  for (const auto& part : parts_)
    is_done = part->wait(timeout) && is_done;
  return is_done;
}

void JoinedWork::abort() {
  for (const auto& part : parts_)
    part->abort();
}

}  // namespace npu::distributed
