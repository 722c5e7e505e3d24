// Allocates and frees blocks, with reports to profilers and observers, and reference counts.
#pragma once

#include <cstddef>

#include <c10/core/Device.h>

#include "npu/allocator.h"

namespace npu::memory {

// A block of at least `bytes` (1 or more) on a device, with one reference.
Block* allocate_block(std::size_t bytes, c10::DeviceIndex device_index);

// The same, for memory that currently belongs to a CPU tensor: the host may use it until
// close_window.
Block* allocate_host_block(std::size_t bytes, c10::DeviceIndex device_index);

// The same, from the pool of pinned memory.
Block* allocate_pinned_block(std::size_t bytes, c10::DeviceIndex device_index);

// The deleter of pointers into the arena (npu tensors, PoolScope's CPU memory) and of memory
// returned by the pinned allocator. A c10::DeleterFnPtr; accepts nullptr. Memory in use by pending
// work is freed when the work has ended.
void free_block(void* data);

// Drops a reference; the last one returns the block to its pool.
void drop_user(Block* block) noexcept;

// Lets the host use the block; false if it always may, so that the caller need not close a window.
bool open_window(Block* block);
void close_window(Block* block) noexcept;

}  // namespace npu::memory
