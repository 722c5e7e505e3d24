// Taking and giving back blocks, with reports to profilers and observers.
#pragma once

#include <cstddef>

#include <c10/core/Device.h>

#include "npu/allocator.h"

namespace npu::memory {

// A block of at least `bytes` (1 or more) on a device.
Block* allocate_block(std::size_t bytes, c10::DeviceIndex device_index);

// The deleter of every pointer into the arena: npu tensors, PoolScope's CPU memory and pinned
// memory alike. A c10::DeleterFnPtr; nullptr is allowed.
void free_block(void* data);

}  // namespace npu::memory
