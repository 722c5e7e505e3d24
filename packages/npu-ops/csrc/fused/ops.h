// Kernels and fakes of the ops in torch.ops.npu, by file. Registered in
// csrc/fused/registrations.cpp; schemas, formulas and gradients are in src/npu_ops/fused.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace npu::ops::fused {

using OptionalTensor = std::optional<at::Tensor>;

// linear_relu.cpp
at::Tensor linear_relu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias);
at::Tensor linear_relu_fake(const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& bias);

// linear_gelu.cpp
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                       std::string_view approximate);
at::Tensor linear_gelu_fake(const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& bias, std::string_view approximate);

// addmm_relu.cpp
at::Tensor addmm_relu(const at::Tensor& input, const at::Tensor& mat1, const at::Tensor& mat2,
                      const at::Scalar& beta, const at::Scalar& alpha);
at::Tensor addmm_relu_fake(const at::Tensor& input, const at::Tensor& mat1, const at::Tensor& mat2,
                           const at::Scalar& beta, const at::Scalar& alpha);

// conv_bn_relu.cpp
at::Tensor conv_bn_relu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                        const at::Tensor& running_mean, const at::Tensor& running_var,
                        const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                        std::int64_t groups, double eps);
at::Tensor conv_bn_relu_fake(const at::Tensor& x, const at::Tensor& weight,
                             const OptionalTensor& bias, const at::Tensor& running_mean,
                             const at::Tensor& running_var, const OptionalTensor& bn_weight,
                             const OptionalTensor& bn_bias, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                             double eps);

// rms_norm.cpp
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_fake(const at::Tensor& x, const at::Tensor& weight, double eps);

// rotary_embedding.cpp
at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool interleaved);
at::Tensor rotary_embedding_fake(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                 bool interleaved);

// swiglu.cpp
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor swiglu_fake(const at::Tensor& gate, const at::Tensor& up);

// fused_attention.cpp
at::Tensor fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           bool is_causal, std::optional<std::int64_t> window,
                           std::optional<double> scale);
at::Tensor fused_attention_fake(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, bool is_causal,
                                std::optional<std::int64_t> window, std::optional<double> scale);
at::Tensor fused_attention_cache(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, at::Tensor& key_cache,
                                 at::Tensor& value_cache, std::int64_t position,
                                 std::optional<std::int64_t> window, std::optional<double> scale);
at::Tensor fused_attention_cache_fake(const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, at::Tensor& key_cache,
                                      at::Tensor& value_cache, c10::SymInt position,
                                      std::optional<std::int64_t> window,
                                      std::optional<double> scale);
at::Tensor fused_attention_cache_autograd(c10::DispatchKeySet keys, const at::Tensor& query,
                                          const at::Tensor& key, const at::Tensor& value,
                                          at::Tensor& key_cache, at::Tensor& value_cache,
                                          c10::SymInt position, std::optional<std::int64_t> window,
                                          std::optional<double> scale);
at::Tensor fused_attention_cache_versions(c10::DispatchKeySet keys, const at::Tensor& query,
                                          const at::Tensor& key, const at::Tensor& value,
                                          at::Tensor& key_cache, at::Tensor& value_cache,
                                          c10::SymInt position, std::optional<std::int64_t> window,
                                          std::optional<double> scale);

// quantized_linear.cpp
at::Tensor quantized_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale,
                            const OptionalTensor& zero_point, const OptionalTensor& bias,
                            std::int64_t bits);
at::Tensor quantized_linear_fake(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& scale, const OptionalTensor& zero_point,
                                 const OptionalTensor& bias, std::int64_t bits);

// dynamic_quantize.cpp
std::tuple<at::Tensor, at::Tensor> dynamic_quantize(const at::Tensor& x,
                                                    std::optional<std::int64_t> group_size);
std::tuple<at::Tensor, at::Tensor> dynamic_quantize_fake(const at::Tensor& x,
                                                         std::optional<std::int64_t> group_size);

}  // namespace npu::ops::fused
