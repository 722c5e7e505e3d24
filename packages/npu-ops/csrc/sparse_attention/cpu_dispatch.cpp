// Dispatch of sparse attention kernels, by the instruction set of kernel programs.
#include <cstring>
#include <initializer_list>

#include "kernel_programs/row_kernels.h"
#include "sparse_attention/kernels.h"

namespace npu::ops::sparse_attention {

#define NPU_DECLARE_SET(set)                 \
  namespace set {                            \
  extern const SparseKernels kSparseKernels; \
  }
NPU_DECLARE_SET(plain)
#if defined(__x86_64__)
NPU_DECLARE_SET(avx2)
NPU_DECLARE_SET(avx_vnni)
NPU_DECLARE_SET(avx512)
NPU_DECLARE_SET(avx512_bf16)
#endif
#undef NPU_DECLARE_SET

const SparseKernels& sparse_kernels() {
  static const SparseKernels& chosen = []() -> const SparseKernels& {
#if defined(__x86_64__)
    const char* name = kernel_programs::row_kernels(nullptr)->name;
    for (const SparseKernels* set : {&avx512_bf16::kSparseKernels, &avx512::kSparseKernels,
                                     &avx_vnni::kSparseKernels, &avx2::kSparseKernels}) {
      if (std::strcmp(set->name, name) == 0) return *set;
    }
#endif
    return plain::kSparseKernels;
  }();
  return chosen;
}

}  // namespace npu::ops::sparse_attention
