// Kernels and fakes of the sparse attention ops of torch.ops.npu; the schemas are defined by
// src/npu_ops/sparse_attention.
//
// On npu tensors the catch-all in csrc/registrations.cpp runs the CPU kernels on aliases.

#include <torch/library.h>

#include "sparse_attention/ops.h"

namespace npu::ops::sparse_attention {
namespace {

TORCH_LIBRARY_IMPL(npu, CPU, m) {
  m.impl("lightning_indexer", TORCH_FN(lightning_indexer));
  m.impl("sparse_flash_attention", TORCH_FN(sparse_flash_attention));
}

TORCH_LIBRARY_IMPL(npu, Meta, m) {
  m.impl("lightning_indexer", TORCH_FN(lightning_indexer_fake));
  m.impl("sparse_flash_attention", TORCH_FN(sparse_flash_attention_fake));
}

}  // namespace
}  // namespace npu::ops::sparse_attention
