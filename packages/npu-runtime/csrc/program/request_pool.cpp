// The pool of idle requests, last in, first out.
#include "program/request_pool.h"

#include <utility>

#include "driver/device_selection.h"
#include "npu/process.h"
#include "program/layers.h"

namespace npu::program {

void RequestDeleter::operator()(npu_request* request) const noexcept {
  if (!is_in_bad_fork()) driver::table().request_destroy(request);
}

Request RequestPool::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return {};
  Request request = std::move(idle_.back());
  idle_.pop_back();
  return request;
}

void RequestPool::give_back(Request request) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(request));
}

std::vector<LayerRecord> RequestPool::layers() {
  const std::lock_guard lock(mutex_);
  return idle_.empty() ? std::vector<LayerRecord>{} : read_layers(idle_.back().get());
}

}  // namespace npu::program
