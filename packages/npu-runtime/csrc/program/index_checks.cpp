// Checks indices: compares their minimum and maximum with the bounds of a check.
#include "program/index_checks.h"

#include <algorithm>
#include <limits>

#include "memory/free_block.h"
#include "npu/allocator.h"
#include "npu/error.h"

namespace npu::program {

namespace {

struct Extremes {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
};

template <typename T>
Extremes extremes_of(const void* data, std::int64_t count) {
  const T* values = static_cast<const T*>(data);
  T least = values[0];
  T most = values[0];
  for (std::int64_t i = 1; i < count; ++i) {
    least = std::min(least, values[i]);
    most = std::max(most, values[i]);
  }
  return {static_cast<std::int64_t>(least), static_cast<std::int64_t>(most)};
}

Extremes extremes_of(const CheckedIndices::Values& values) {
  if (values.count == 0) return {};
  switch (values.dtype) {
    case at::kLong:
      return extremes_of<std::int64_t>(values.data, values.count);
    case at::kInt:
      return extremes_of<std::int32_t>(values.data, values.count);
    case at::kShort:
      return extremes_of<std::int16_t>(values.data, values.count);
    case at::kChar:
      return extremes_of<std::int8_t>(values.data, values.count);
    default:
      return extremes_of<std::uint8_t>(values.data, values.count);
  }
}

// Gives the host memory that pending work does not write; begin_host_access would also wait for the
// current run.
class Window {
 public:
  explicit Window(const void* data) : block_(data == nullptr ? nullptr : block_of(data)) {
    if (block_ != nullptr && !memory::open_window(block_)) block_ = nullptr;
  }
  ~Window() {
    if (block_ != nullptr) memory::close_window(block_);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

 private:
  Block* block_;
};

bool is_pending(const void* data) noexcept {
  const Block* block = data == nullptr ? nullptr : block_of(data);
  return block != nullptr && block->users.load(std::memory_order_acquire) > 1;
}

CheckedIndices::Values values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.numel(), tensor.scalar_type()};
}

bool is_index_type(at::ScalarType dtype) noexcept {
  return dtype == at::kLong || dtype == at::kInt || dtype == at::kShort || dtype == at::kChar ||
         dtype == at::kByte;
}

}  // namespace

CheckedIndices::CheckedIndices(const IndexCheck& check, const std::vector<at::Tensor>& inputs,
                               const std::vector<at::Tensor>& outputs)
    : check(&check), indices(values_of((check.is_output ? outputs : inputs)[check.port])) {
  if (check.size.has_value()) {
    known_size = *check.size;
  } else if (check.size_dim.has_value()) {
    known_size = inputs[check.size_port].size(*check.size_dim);
  } else {
    size = values_of((check.is_size_output ? outputs : inputs)[check.size_port]);
  }
}

bool CheckedIndices::is_idle() const noexcept {
  return !is_pending(indices.data) && !is_pending(size.data);
}

std::optional<std::string> CheckedIndices::find_violation(const std::string& program) const {
  if (indices.count == 0) return std::nullopt;
  const Window over_indices(indices.data);
  const Window over_size(size.data);
  const std::int64_t end = size.data == nullptr ? known_size : extremes_of(size).most;
  const std::int64_t low = check->wraps ? -end : 0;
  const Extremes found = extremes_of(indices);
  if (found.least >= low && found.most < end) return std::nullopt;
  const std::int64_t wrong = found.least < low ? found.least : found.most;
  return "program " + program + ": " + check->what + " must be from " + std::to_string(low) +
         " to " + std::to_string(end - 1) + ", got " + std::to_string(wrong) +
         ". Check the source of these integers.";
}

bool needs_outputs(const IndexCheck& check) noexcept {
  return check.is_output ||
         (!check.size.has_value() && !check.size_dim.has_value() && check.is_size_output);
}

std::optional<std::string> find_violation(const std::string& program,
                                          const std::vector<IndexCheck>& checks,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& outputs,
                                          bool with_outputs) {
  for (const IndexCheck& check : checks) {
    if (needs_outputs(check) != with_outputs) continue;
    if (auto found = CheckedIndices(check, inputs, outputs).find_violation(program)) return found;
  }
  return std::nullopt;
}

void check_ports(const std::string& program, const std::vector<IndexCheck>& checks,
                 const std::vector<Port>& inputs, const std::vector<Port>& outputs) {
  const auto fits = [&](std::size_t port, bool is_output) {
    const std::vector<Port>& ports = is_output ? outputs : inputs;
    return port < ports.size() && is_index_type(ports[port].dtype);
  };
  for (const IndexCheck& check : checks) {
    bool is_known = fits(check.port, check.is_output);
    if (is_known && !check.size.has_value()) {
      is_known =
          check.size_dim.has_value()
              ? check.size_port < inputs.size() && *check.size_dim >= 0 &&
                    static_cast<std::size_t>(*check.size_dim) < inputs[check.size_port].shape.size()
              : fits(check.size_port, check.is_size_output);
    }
    if (is_known) continue;
    throw Error(ErrorKind::kInput, "program-input",
                "program " + program + ": the check of " + check.what +
                    " must name an integer port of the program, got port " +
                    std::to_string(check.port) + ".");
  }
}

}  // namespace npu::program
