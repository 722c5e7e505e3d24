// Kernel dispatch by instruction set: the best that this processor supports, or a requested one.
#include <cstring>
#include <span>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernel_programs/amx_products.h"
#include "kernel_programs/linear.h"
#include "kernel_programs/row_kernels.h"

namespace npu::ops::kernel_programs {

#define NPU_DECLARE_SET(set)                 \
  namespace set {                            \
  extern const LinearKernels kLinearKernels; \
  extern const RowKernels kRowKernels;       \
  }
NPU_DECLARE_SET(plain)
#if defined(__x86_64__)
NPU_DECLARE_SET(avx2)
NPU_DECLARE_SET(avx_vnni)
NPU_DECLARE_SET(avx512)
NPU_DECLARE_SET(avx512_bf16)
#endif
#undef NPU_DECLARE_SET

namespace {

struct Set {
  const LinearKernels* linear;
  const RowKernels* row;
  bool is_usable;
};

// The best first. AVX-VNNI's registers are AVX2's: only products of integers differ.
std::span<const Set> all_sets() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                               __builtin_cpu_supports("f16c");
  static const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni");
  static const Set sets[] = {
      {&avx512_bf16::kLinearKernels, &avx512_bf16::kRowKernels,
       has_avx512 && __builtin_cpu_supports("avx512bf16")},
      {&avx512::kLinearKernels, &avx512::kRowKernels, has_avx512},
      {&avx_vnni::kLinearKernels, &avx_vnni::kRowKernels,
       has_avx2 && __builtin_cpu_supports("avxvnni")},
      {&avx2::kLinearKernels, &avx2::kRowKernels, has_avx2},
      {&plain::kLinearKernels, &plain::kRowKernels, true},
  };
#else
  static const Set sets[] = {{&plain::kLinearKernels, &plain::kRowKernels, true}};
#endif
  return sets;
}

const Set* set_of(const char* name) {
  for (const Set& set : all_sets()) {
    if (set.is_usable && (name == nullptr || std::strcmp(name, set.linear->name) == 0)) return &set;
  }
  return nullptr;
}

#if defined(__x86_64__)

bool has_amx() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned int kTiles = 1U << 24, kInt8 = 1U << 25;
  if ((d & kTiles) == 0 || (d & kInt8) == 0) return false;
  // Linux gives a process these registers only on request.
  constexpr int kAskForFeature = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kAskForFeature, kTileData) == 0;
}

#endif

}  // namespace

const AmxProducts* amx_products() {
#if defined(__x86_64__)
  static const bool is_usable = has_amx() && are_right(kAmxProducts);
  return is_usable ? &kAmxProducts : nullptr;
#else
  return nullptr;
#endif
}

const LinearKernels* linear_kernels(const char* name) {
  const Set* set = set_of(name);
  return set == nullptr ? nullptr : set->linear;
}

const RowKernels* row_kernels(const char* name) {
  const Set* set = set_of(name);
  return set == nullptr ? nullptr : set->row;
}

std::vector<std::string> kernel_sets() {
  std::vector<std::string> names;
  for (const Set& set : all_sets()) {
    if (set.is_usable) names.emplace_back(set.linear->name);
  }
  return names;
}

}  // namespace npu::ops::kernel_programs
