// Converts a driver's error to an exception.
#pragma once

#include <string>

#include "driver/device_selection.h"
#include "npu/error.h"

namespace npu::program {

inline void check(npu_status status, ErrorKind kind, const char* code, const std::string& subject) {
  if (status == NPU_OK) return;
  throw Error(kind, code, subject + ": " + driver::table().last_error());
}

}  // namespace npu::program
