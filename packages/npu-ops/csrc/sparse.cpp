// Members and shape of COO and the four compressed layouts.

#include "sparse.h"

#include <vector>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

namespace npu::ops {
namespace {

using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;

bool is_coo(const c10::TensorImpl& impl) {
  return impl.key_set().has(DispatchKey::Sparse);
}

}  // namespace

at::Tensor sparse_alias_of(const c10::TensorImpl& source, MemberMap map) {
  if (is_coo(source)) {
    const DispatchKeySet keys =
        DispatchKeySet(DispatchKey::Sparse) | DispatchKeySet(BackendComponent::CPUBit);
    auto alias = c10::make_intrusive<at::SparseTensorImpl>(keys, source.dtype());
    take_over_sparse(*alias, source, map);
    return at::Tensor(std::move(alias));
  }
  const DispatchKeySet keys =
      DispatchKeySet(DispatchKey::SparseCsr) | DispatchKeySet(BackendComponent::CPUBit);
  auto alias = c10::make_intrusive<at::SparseCsrTensorImpl>(keys, c10::Device(c10::DeviceType::CPU),
                                                            source.layout(), source.dtype());
  take_over_sparse(*alias, source, map);
  return at::Tensor(std::move(alias));
}

void map_members(c10::TensorImpl& impl, MemberMap map) {
  if (is_coo(impl)) {
    auto& coo = static_cast<at::SparseTensorImpl&>(impl);
    coo.indices_ = map(coo.indices_);
    coo.values_ = map(coo.values_);
  } else {
    auto& compressed = static_cast<at::SparseCsrTensorImpl&>(impl);
    compressed.crow_indices_ = map(compressed.crow_indices_);
    compressed.col_indices_ = map(compressed.col_indices_);
    compressed.values_ = map(compressed.values_);
  }
}

void take_over_sparse(c10::TensorImpl& destination, const c10::TensorImpl& source, MemberMap map) {
  if (is_coo(source)) {
    auto& to = static_cast<at::SparseTensorImpl&>(destination);
    const auto& from = static_cast<const at::SparseTensorImpl&>(source);
    to.indices_ = map(from.indices_);
    to.values_ = map(from.values_);
    to.sparse_dim_ = from.sparse_dim_;
    to.dense_dim_ = from.dense_dim_;
    to.coalesced_ = from.coalesced_;
    to.set_sizes_and_strides(from.sizes(), std::vector<std::int64_t>(from.sizes().size()));
  } else {
    auto& to = static_cast<at::SparseCsrTensorImpl&>(destination);
    const auto& from = static_cast<const at::SparseCsrTensorImpl&>(source);
    to.set_layout(from.layout_);
    to.set_member_tensors(map(from.crow_indices_), map(from.col_indices_), map(from.values_),
                          from.sizes());
  }
}

}  // namespace npu::ops
