// Seeds every device's default generator, even before they exist. The generators are in
// generator.cpp.
#pragma once

#include <cstdint>

#include "npu/export.h"

namespace npu {

// Does not open a device: generators created later start from this seed.
NPU_API void seed_default_generators(std::uint64_t seed);

}  // namespace npu
