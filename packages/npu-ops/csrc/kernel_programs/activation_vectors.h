// Activations of vectors, in the file's instruction set.
#pragma once

#include "kernel_programs/activation.h"
#include "kernel_programs/vectors.h"

namespace npu::ops::kernel_programs::NPU_SET {

inline Floats activated(Floats x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0.0F ? all(0) : x;
    case Activation::gelu:
      return 0.5F * x * (1.0F + error_function(x * 0.70710678118654752F));
    case Activation::gelu_tanh: {
      const Floats inner = 0.79788456080286536F * (x + 0.044715F * x * x * x);
      return 0.5F * x * (1.0F + hyperbolic_tangent(inner));
    }
    case Activation::silu:
      return x / (1.0F + exponential(-x));
    case Activation::sigmoid:
      return 1.0F / (1.0F + exponential(-x));
    case Activation::tanh:
      return hyperbolic_tangent(x);
    case Activation::quick_gelu:
      return x / (1.0F + exponential(-1.702F * x));
  }
  return x;
}

}  // namespace npu::ops::kernel_programs::NPU_SET
