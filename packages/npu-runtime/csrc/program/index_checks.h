// Indices that a run reads or returns: whether each is within the bounds that its program named.
//
// For an index out of range a device may read anything, or write there. The host looks at the
// indices themselves: they are few, and their memory is the host's as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "npu/program.h"

namespace npu::program {

// The memory of a check in one run. Whoever holds it keeps the memory.
struct CheckedIndices {
  struct Values {
    const void* data = nullptr;
    std::int64_t count = 0;
    at::ScalarType dtype = at::kLong;
  };

  CheckedIndices(const IndexCheck& check, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& outputs);

  // Whether no device work is pending on what it reads.
  bool is_idle() const noexcept;

  // What is wrong, if anything. The caller makes sure that the memory is not being written.
  std::optional<std::string> find_violation(const std::string& program) const;

  const IndexCheck* check;
  Values indices;
  Values size;  // one element; no data when `known_size` is set
  std::int64_t known_size = 0;
};

// Whether a check needs what a run gave.
bool needs_outputs(const IndexCheck& check) noexcept;

// The first violation among the checks that need outputs, or among those that do not.
std::optional<std::string> find_violation(const std::string& program,
                                          const std::vector<IndexCheck>& checks,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& outputs,
                                          bool with_outputs);

// Throws Error [program-input] for a check of ports that a program does not have.
void check_ports(const std::string& program, const std::vector<IndexCheck>& checks,
                 const std::vector<Port>& inputs, const std::vector<Port>& outputs);

}  // namespace npu::program
