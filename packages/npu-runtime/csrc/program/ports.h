// A program's inputs and outputs: reading them from the driver, and whether a tensor fits.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "npu/driver.h"
#include "npu/program.h"

namespace npu::program {

at::ScalarType to_torch(npu_dtype dtype);
npu_dtype from_torch(at::ScalarType dtype);

// Throws Error [program-load] for a model whose inputs have no rank.
std::vector<Port> read_ports(const npu_program* program, npu_direction direction,
                             const std::string& name);

// One sentence for a tensor that a port cannot take; empty when it can.
std::string mismatch(const Port& port, const at::Tensor& tensor);

[[noreturn]] void raise_input(const std::string& program, const char* what, std::size_t index,
                              const Port& port, const std::string& problem);

// Throws Error [program-input].
void check_inputs(const std::string& program, const std::vector<Port>& ports,
                  const std::vector<at::Tensor>& inputs);

}  // namespace npu::program
