// Activation functions between linear layers.
#pragma once

namespace npu::ops::kernel_programs {

enum class Activation { none, relu, gelu, gelu_tanh, silu, sigmoid, tanh, quick_gelu };

}  // namespace npu::ops::kernel_programs
