// Kernels and fakes of torch.ops.npu; the schemas are defined by src/npu_ops/fused.
//
// On npu tensors the catch-all in csrc/registrations.cpp runs the CPU kernels on aliases.

#include <torch/library.h>

#include "autocast.h"
#include "ops.h"

namespace npu::ops::fused {
namespace {

TORCH_LIBRARY_IMPL(npu, CPU, m) {
  m.impl("linear_relu", TORCH_FN(linear_relu));
  m.impl("linear_gelu", TORCH_FN(linear_gelu));
  m.impl("addmm_relu", TORCH_FN(addmm_relu));
  m.impl("conv_bn_relu", TORCH_FN(conv_bn_relu));
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("rotary_embedding", TORCH_FN(rotary_embedding));
  m.impl("swiglu", TORCH_FN(swiglu));
  m.impl("fused_attention", TORCH_FN(fused_attention));
  m.impl("fused_attention.cache", TORCH_FN(fused_attention_cache));
  m.impl("quantized_linear", TORCH_FN(quantized_linear));
  m.impl("dynamic_quantize", TORCH_FN(dynamic_quantize));
}

TORCH_LIBRARY_IMPL(npu, Meta, m) {
  m.impl("linear_relu", TORCH_FN(linear_relu_fake));
  m.impl("linear_gelu", TORCH_FN(linear_gelu_fake));
  m.impl("addmm_relu", TORCH_FN(addmm_relu_fake));
  m.impl("conv_bn_relu", TORCH_FN(conv_bn_relu_fake));
  m.impl("rms_norm", TORCH_FN(rms_norm_fake));
  m.impl("rotary_embedding", TORCH_FN(rotary_embedding_fake));
  m.impl("swiglu", TORCH_FN(swiglu_fake));
  m.impl("fused_attention", TORCH_FN(fused_attention_fake));
  m.impl("fused_attention.cache", TORCH_FN(fused_attention_cache_fake));
  m.impl("quantized_linear", TORCH_FN(quantized_linear_fake));
  m.impl("dynamic_quantize", TORCH_FN(dynamic_quantize_fake));
}

TORCH_LIBRARY_IMPL(npu, Autograd, m) {
  m.impl("fused_attention.cache", TORCH_FN(fused_attention_cache_autograd));
}

TORCH_LIBRARY_IMPL(npu, ADInplaceOrView, m) {
  m.impl("fused_attention.cache", TORCH_FN(fused_attention_cache_versions));
}

TORCH_LIBRARY_IMPL(npu, AutocastCPU, m) {
  add_autocast_on_cpu(m);
}

TORCH_LIBRARY_IMPL(npu, AutocastPrivateUse1, m) {
  add_autocast_on_npu(m);
}

}  // namespace
}  // namespace npu::ops::fused
