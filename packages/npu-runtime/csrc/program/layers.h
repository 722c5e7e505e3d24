// Times per layer, as the vendor measured them in a request's latest run.
#pragma once

#include <vector>

#include "npu/driver.h"
#include "npu/program.h"

namespace npu::program {

// Empty when the program was loaded without profiling.
std::vector<LayerRecord> read_layers(npu_request* request);

}  // namespace npu::program
