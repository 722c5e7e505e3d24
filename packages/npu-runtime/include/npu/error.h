// The runtime's exception, which the Python side raises as a class of npu_runtime.errors.
//
// Thrown through a torch operator it becomes a RuntimeError with the same text. Out of memory is
// torch's own c10::OutOfMemoryError instead, because users catch torch.OutOfMemoryError.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "npu/export.h"

namespace npu {

enum class ErrorKind { kDevice, kDriver, kProgram, kInput, kIndex };

class NPU_API Error : public std::runtime_error {
 public:
  // `message` has subject, rule, received value and fix; `code` is the stable name in the docs.
  Error(ErrorKind kind, std::string_view code, std::string message);
  ~Error() override;

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  ErrorKind kind_;
  std::string code_;
  std::string message_;
};

}  // namespace npu
