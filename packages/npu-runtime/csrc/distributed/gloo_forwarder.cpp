// Each operation has three steps: create contiguous CPU tensors, call Gloo on them, wrap its
// handle.
#include "distributed/gloo_forwarder.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "distributed/forwarded_work.h"

namespace npu::distributed {

using c10d::OpType;

namespace {

// Gloo requires the parts of a gathered tensor to have the input's shape; other backends, and
// programs written for them, only its number of elements: both are viewed as rows.
void show_as_rows(at::Tensor& output, at::Tensor& input, int size) {
  if (output.numel() != input.numel() * size) return;  // Gloo's error then has the given shapes
  output = output.view(-1);
  input = input.view(-1);
}

}  // namespace

GlooForwarder::GlooForwarder(c10::intrusive_ptr<c10d::Backend> gloo)
    : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

GlooForwarder::~GlooForwarder() = default;

c10::intrusive_ptr<GlooForwarder::Options> GlooForwarder::getBackendOptions() {
  return gloo_->getBackendOptions();
}
void GlooForwarder::setTimeout(std::chrono::milliseconds timeout) {
  gloo_->setTimeout(timeout);
}
void GlooForwarder::setSequenceNumberForGroup() {
  gloo_->setSequenceNumberForGroup();
}
std::uint64_t GlooForwarder::getSequenceNumberForGroup() {
  return gloo_->getSequenceNumberForGroup();
}
void GlooForwarder::enableCollectivesTiming() {
  gloo_->enableCollectivesTiming();
}
void GlooForwarder::abort() {
  gloo_->abort();
}
void GlooForwarder::shutdown() {
  gloo_->shutdown();
}

GlooForwarder::WorkPtr GlooForwarder::forwarded(OpType type, WorkPtr work, TensorLists results,
                                                std::shared_ptr<OutputCopies> copies) {
  WorkPtr ours = c10::make_intrusive<ForwardedWork>(type, std::move(work), std::move(results),
                                                    std::move(copies));
  if (is_coalescing_) coalesced_.push_back(ours);
  return ours;
}

void GlooForwarder::startCoalescing() {
  is_coalescing_ = true;
  coalesced_.clear();
}

GlooForwarder::WorkPtr GlooForwarder::endCoalescing() {
  is_coalescing_ = false;
  return c10::make_intrusive<JoinedWork>(std::exchange(coalesced_, {}));
}

GlooForwarder::WorkPtr GlooForwarder::broadcast(Tensors& tensors,
                                                const c10d::BroadcastOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors views = host_outputs(tensors, *copies);
  return forwarded(OpType::BROADCAST, gloo_->broadcast(views, options), {tensors}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::allreduce(Tensors& tensors,
                                                const c10d::AllreduceOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors views = host_outputs(tensors, *copies);
  return forwarded(OpType::ALLREDUCE, gloo_->allreduce(views, options), {tensors}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors views = host_outputs(tensors, *copies);
  return forwarded(OpType::ALLREDUCE_COALESCED, gloo_->allreduce_coalesced(views, options),
                   {tensors}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors views = host_outputs(tensors, *copies);
  return forwarded(OpType::REDUCE, gloo_->reduce(views, options), {tensors}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::allgather(TensorLists& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  TensorLists output_views = host_outputs(outputs, *copies);
  Tensors input_views = host_inputs(inputs);
  return forwarded(OpType::ALLGATHER, gloo_->allgather(output_views, input_views, options), outputs,
                   copies);
}

GlooForwarder::WorkPtr GlooForwarder::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  at::Tensor output_view = host_output(output, *copies);
  at::Tensor input_view = host_input(input);
  show_as_rows(output_view, input_view, getSize());
  return forwarded(OpType::_ALLGATHER_BASE,
                   gloo_->_allgather_base(output_view, input_view, options), {{output}}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  TensorLists output_views = host_outputs(outputs, *copies);
  Tensors input_views = host_inputs(inputs);
  return forwarded(OpType::ALLGATHER_COALESCED,
                   gloo_->allgather_coalesced(output_views, input_views, options), outputs, copies);
}

GlooForwarder::WorkPtr GlooForwarder::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors output_views = host_outputs(outputs, *copies);
  Tensors input_views = host_inputs(inputs);
  for (std::size_t i = 0; i < output_views.size() && i < input_views.size(); ++i) {
    show_as_rows(output_views[i], input_views[i], getSize());
  }
  return forwarded(OpType::COALESCED,
                   gloo_->allgather_into_tensor_coalesced(output_views, input_views, options),
                   {outputs}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::gather(TensorLists& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  TensorLists output_views = host_outputs(outputs, *copies);
  Tensors input_views = host_inputs(inputs);
  return forwarded(OpType::GATHER, gloo_->gather(output_views, input_views, options), outputs,
                   copies);
}

GlooForwarder::WorkPtr GlooForwarder::scatter(Tensors& outputs, TensorLists& inputs,
                                              const c10d::ScatterOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors output_views = host_outputs(outputs, *copies);
  TensorLists input_views = host_inputs(inputs);
  return forwarded(OpType::SCATTER, gloo_->scatter(output_views, input_views, options), {outputs},
                   copies);
}

GlooForwarder::WorkPtr GlooForwarder::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors output_views = host_outputs(outputs, *copies);
  TensorLists input_views = host_inputs(inputs);
  return forwarded(OpType::REDUCE_SCATTER,
                   gloo_->reduce_scatter(output_views, input_views, options), {outputs}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  at::Tensor output_view = host_output(output, *copies);
  at::Tensor input_view = host_input(input);
  return forwarded(OpType::_REDUCE_SCATTER_BASE,
                   gloo_->_reduce_scatter_base(output_view, input_view, options), {{output}},
                   copies);
}

GlooForwarder::WorkPtr GlooForwarder::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors output_views = host_outputs(outputs, *copies);
  Tensors input_views = host_inputs(inputs);
  return forwarded(OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                   gloo_->reduce_scatter_tensor_coalesced(output_views, input_views, options),
                   {outputs}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<std::int64_t>& output_sizes,
                                                    std::vector<std::int64_t>& input_sizes,
                                                    const c10d::AllToAllOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  at::Tensor output_view = host_output(output, *copies);
  at::Tensor input_view = host_input(input);
  return forwarded(
      OpType::ALLTOALL_BASE,
      gloo_->alltoall_base(output_view, input_view, output_sizes, input_sizes, options), {{output}},
      copies);
}

GlooForwarder::WorkPtr GlooForwarder::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions& options) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors output_views = host_outputs(outputs, *copies);
  Tensors input_views = host_inputs(inputs);
  return forwarded(OpType::ALLTOALL, gloo_->alltoall(output_views, input_views, options), {outputs},
                   copies);
}

GlooForwarder::WorkPtr GlooForwarder::send(Tensors& tensors, int rank, int tag) {
  Tensors views = host_inputs(tensors);
  return forwarded(OpType::SEND, gloo_->send(views, rank, tag), {tensors}, nullptr);
}

GlooForwarder::WorkPtr GlooForwarder::recv(Tensors& tensors, int rank, int tag) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors views = host_outputs(tensors, *copies);
  return forwarded(OpType::RECV, gloo_->recv(views, rank, tag), {tensors}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::recvAnysource(Tensors& tensors, int tag) {
  const auto copies = std::make_shared<OutputCopies>();
  Tensors views = host_outputs(tensors, *copies);
  return forwarded(OpType::RECVANYSOURCE, gloo_->recvAnysource(views, tag), {tensors}, copies);
}

GlooForwarder::WorkPtr GlooForwarder::barrier(const c10d::BarrierOptions& options) {
  c10d::BarrierOptions on_host = options;
  on_host.device_ids.clear();  // options of npu, which Gloo does not have
  on_host.device.reset();
  return forwarded(OpType::BARRIER, gloo_->barrier(on_host), {}, nullptr);
}

void GlooForwarder::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  gloo_->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace npu::distributed
