// A program's inputs and outputs: read from the driver, and checked against tensors.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "npu/driver.h"
#include "npu/program.h"

namespace npu::program {

at::ScalarType to_torch(npu_dtype dtype);
npu_dtype from_torch(at::ScalarType dtype);

// Throws Error [program-load] for a model with inputs of unknown rank.
std::vector<Port> read_ports(const npu_program* program, npu_direction direction,
                             const std::string& name);

// The message for a tensor that does not fit a port; empty if it fits.
std::string mismatch(const Port& port, const at::Tensor& tensor);

[[noreturn]] void raise_input(const std::string& program, const char* what, std::size_t index,
                              const Port& port, const std::string& problem);

// Throws Error [program-input].
void check_inputs(const std::string& program, const std::vector<Port>& ports,
                  const std::vector<at::Tensor>& inputs);

}  // namespace npu::program
