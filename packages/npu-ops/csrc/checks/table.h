// Ops whose arguments are checked before their CPU kernel runs: those that torch's kernel
// trusts. Nothing that a user passes may end the process.
#pragma once

#include <string>
#include <vector>

#include "checks/check.h"

namespace npu::ops::checks {

using ArgumentCheck = void (*)(const Given& given);

// Null for nearly all ops. `op` is a full name ("aten::add.Tensor").
ArgumentCheck argument_check_of(const std::string& op);

// Ops with a check that torch composes of others without consulting the device, by the name that a
// registration takes; their check is registered in front of the composition.
const std::vector<const char*>& checked_compositions();

}  // namespace npu::ops::checks
