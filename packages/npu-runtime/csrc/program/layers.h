// Times per layer, measured by the vendor in a request's latest run.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "npu/driver.h"
#include "npu/program.h"

namespace npu::program {

// Empty if the program was loaded without profiling.
std::vector<LayerRecord> read_layers(npu_request* request);

// Inputs and outputs of a layer, such as "f32[1,64] bf16[64,8]".
struct LayerShapes {
  std::string inputs;
  std::string outputs;
};

// By the layer's name, with the sizes of the latest run; empty if the driver does not report them.
std::unordered_map<std::string, LayerShapes> read_layer_shapes(const npu_program* program);

}  // namespace npu::program
