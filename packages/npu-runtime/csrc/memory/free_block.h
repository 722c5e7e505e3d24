// Taking and giving back blocks, with reports to profilers and observers, and what keeps a block in
// use.
#pragma once

#include <cstddef>

#include <c10/core/Device.h>

#include "npu/allocator.h"

namespace npu::memory {

// A block of at least `bytes` (1 or more) on a device, with its owner as the one user.
Block* allocate_block(std::size_t bytes, c10::DeviceIndex device_index);

// The same, for memory that is a CPU tensor's for now: the host may use it until close_window.
Block* allocate_host_block(std::size_t bytes, c10::DeviceIndex device_index);

// The same, from the pool of pinned memory.
Block* allocate_pinned_block(std::size_t bytes, c10::DeviceIndex device_index);

// The deleter of pointers into the arena, npu tensors' and PoolScope's CPU memory alike, and of
// what the pinned allocator gives back. A c10::DeleterFnPtr; nullptr is allowed. Memory that
// pending work uses goes back when that has ended.
void free_block(void* data);

// One user less; the last one gives the block back to its pool.
void drop_user(Block* block) noexcept;

// Lets the host use the block; false when it always may, and there is nothing to close.
bool open_window(Block* block);
void close_window(Block* block) noexcept;

}  // namespace npu::memory
