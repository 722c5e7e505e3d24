// Random numbers on npu: a generator whose stream is bit-identical to the CPU's for the same seed,
// and independent of the CPU's default generator.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "npu/export.h"

namespace npu {

// The default generator of a device.
NPU_API const at::Generator& default_generator(c10::DeviceIndex device_index = -1);

// A new generator on a device, seeded with torch's default seed.
NPU_API at::Generator make_generator(c10::DeviceIndex device_index = -1);

// The CPU generator with the state of `generator`: pass it to a CPU kernel, and the npu generator
// advances. Precondition: generator.device() is an npu device.
NPU_API at::Generator cpu_generator_of(const at::Generator& generator);

}  // namespace npu
