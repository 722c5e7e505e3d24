// Bounds checks of indices that a run reads or returns.
//
// For an index out of range, a device may read or write other memory. The host checks the indices:
// they are few, and in memory that the host shares.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "npu/program.h"

namespace npu::program {

// The memory of a check in one run. Its holder keeps the memory alive.
struct CheckedIndices {
  struct Values {
    const void* data = nullptr;
    std::int64_t count = 0;
    at::ScalarType dtype = at::kLong;
  };

  CheckedIndices(const IndexCheck& check, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& outputs);

  // Whether the device has no pending work on its memory.
  bool is_idle() const noexcept;

  // The error, if any. The caller ensures that the memory is not being written.
  std::optional<std::string> find_violation(const std::string& program) const;

  const IndexCheck* check;
  Values indices;
  Values size;  // one element; no data when `known_size` is set
  std::int64_t known_size = 0;
};

// Whether a check needs outputs of a run.
bool needs_outputs(const IndexCheck& check) noexcept;

// The first violation among the checks that need outputs, or among the others.
std::optional<std::string> find_violation(const std::string& program,
                                          const std::vector<IndexCheck>& checks,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& outputs,
                                          bool with_outputs);

// Throws Error [program-input] for ports that a program does not have.
void check_ports(const std::string& program, const std::vector<IndexCheck>& checks,
                 const std::vector<Port>& inputs, const std::vector<Port>& outputs);

}  // namespace npu::program
