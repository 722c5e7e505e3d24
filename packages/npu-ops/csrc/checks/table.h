// Ops with argument checks before their CPU kernel, because torch's kernel does not validate them.
// User input must not end the process.
#pragma once

#include <string>
#include <vector>

#include "checks/check.h"

namespace npu::ops::checks {

using ArgumentCheck = void (*)(const Given& given);

// Null for nearly all ops. `op` is a full name ("aten::add.Tensor").
ArgumentCheck argument_check_of(const std::string& op);

// Composite ops with a check, by the name of the registration; the check is registered before the
// composition.
const std::vector<const char*>& checked_compositions();

}  // namespace npu::ops::checks
