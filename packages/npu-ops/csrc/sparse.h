// Sparse tensors consist of members, indices and values, instead of a storage. These functions
// decompose and rebuild them; the caller aliases and adopts the members (alias.h, fallback.cpp).
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
