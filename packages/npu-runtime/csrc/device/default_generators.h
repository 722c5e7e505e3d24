// Seeding every device's default generator, also before there are any. The generators themselves
// are in generator.cpp.
#pragma once

#include <cstdint>

#include "npu/export.h"

namespace npu {

// Opens no device: where the generators have yet to be made, they start from this seed.
NPU_API void seed_default_generators(std::uint64_t seed);

}  // namespace npu
