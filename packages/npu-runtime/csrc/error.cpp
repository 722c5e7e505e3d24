// The runtime's exception class; the documentation has the codes.
#include "npu/error.h"

namespace npu {

Error::Error(ErrorKind kind, std::string_view code, std::string message)
    : std::runtime_error(message + " [" + std::string(code) + "]"),
      kind_(kind),
      code_(code),
      message_(std::move(message)) {}

// Defined here so that the class has one type_info, which is required to catch it across libraries.
Error::~Error() = default;

}  // namespace npu
