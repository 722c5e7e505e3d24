// Sparse tensors have no storage but members: indices and values. These functions take one apart
// and put one together; aliasing and adopting of the members themselves is the caller's (alias.h,
// fallback.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace npu::ops {

using MemberMap = c10::function_ref<at::Tensor(const at::Tensor&)>;

inline bool is_sparse(const c10::TensorImpl& impl) noexcept {
  return impl.key_set().has_any(
      c10::DispatchKeySet({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr}));
}

// A CPU tensor of the same layout and shape whose members are `map` of the members.
at::Tensor sparse_alias_of(const c10::TensorImpl& source, MemberMap map);

// Replaces each member by `map` of it.
void map_members(c10::TensorImpl& impl, MemberMap map);

// Gives `destination` the shape, the flags and, through `map`, the members of `source`.
void take_over_sparse(c10::TensorImpl& destination, const c10::TensorImpl& source, MemberMap map);

}  // namespace npu::ops
