// Layout of one head's keys and values of a layer in a block of the cache.
#pragma once

#include <cstddef>

#include "kernel_programs/row_kernels.h"
#include "kernel_programs/vectors.h"

namespace npu::ops::kernel_programs::NPU_SET {

// One head's keys or values of a layer in a block.
template <typename T>
struct Head {
  const T* keys;
  const T* values;
  const float* key_scales;  // with u8: scales, then least values, then those of the values
  const float* value_scales;

  Head(const LayerCache& cache, const unsigned char* block, int key_head) {
    const unsigned char* start = block + cache.offset + key_head * cache.head_bytes();
    keys = reinterpret_cast<const T*>(start);
    values = keys + std::size_t(cache.key_size) * kBlockSlots;
    key_scales = reinterpret_cast<const float*>(values + std::size_t(cache.padded_value_size()) *
                                                             kBlockSlots);
    value_scales = key_scales + 2 * kBlockSlots;
  }
};

}  // namespace npu::ops::kernel_programs::NPU_SET
