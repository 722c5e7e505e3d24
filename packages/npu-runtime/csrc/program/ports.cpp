// Ports: the driver's description in torch's terms, and messages for tensors that do not fit.
#include "program/ports.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "program/status.h"

namespace npu::program {

namespace {

constexpr std::pair<npu_dtype, at::ScalarType> kDtypes[] = {
    {NPU_DTYPE_BOOL, at::kBool},     {NPU_DTYPE_UINT8, at::kByte},
    {NPU_DTYPE_INT8, at::kChar},     {NPU_DTYPE_INT16, at::kShort},
    {NPU_DTYPE_INT32, at::kInt},     {NPU_DTYPE_INT64, at::kLong},
    {NPU_DTYPE_FLOAT16, at::kHalf},  {NPU_DTYPE_BFLOAT16, at::kBFloat16},
    {NPU_DTYPE_FLOAT32, at::kFloat}, {NPU_DTYPE_FLOAT64, at::kDouble}};

template <typename Dims>
std::string shape_text(const Dims& dims) {
  std::ostringstream text;
  text << '(';
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text << (i == 0 ? "" : ", ");
    if (dims[i] < 0) {
      text << '?';
    } else {
      text << dims[i];
    }
  }
  text << ')';
  return text.str();
}

bool shape_fits(const Port& port, c10::IntArrayRef shape) {
  if (port.shape.size() != shape.size()) return false;
  return std::equal(
      shape.begin(), shape.end(), port.shape.begin(),
      [](std::int64_t actual, std::int64_t wanted) { return wanted < 0 || actual == wanted; });
}

}  // namespace

at::ScalarType to_torch(npu_dtype dtype) {
  for (const auto& [theirs, ours] : kDtypes) {
    if (theirs == dtype) return ours;
  }
  return at::ScalarType::Undefined;
}

npu_dtype from_torch(at::ScalarType dtype) {
  for (const auto& [theirs, ours] : kDtypes) {
    if (ours == dtype) return theirs;
  }
  return NPU_DTYPE_INVALID;
}

std::string mismatch(const Port& port, const at::Tensor& tensor) {
  if (!tensor.defined()) return "got no tensor";
  if (tensor.scalar_type() != port.dtype || !shape_fits(port, tensor.sizes())) {
    return "needs " + std::string(c10::toString(port.dtype)) + " " + shape_text(port.shape) +
           ", got " + std::string(c10::toString(tensor.scalar_type())) + " " +
           shape_text(tensor.sizes());
  }
  if (!tensor.is_cpu() && !tensor.is_privateuseone()) {
    return "needs a tensor on npu or cpu, got one on " + tensor.device().str();
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    return "needs a contiguous tensor; call .contiguous() first";
  }
  return {};
}

void raise_input(const std::string& program, const char* what, std::size_t index, const Port& port,
                 const std::string& problem) {
  throw Error(ErrorKind::kInput, "program-input",
              "program " + program + ": " + what + " " + std::to_string(index) + " (" + port.name +
                  ") " + problem + ".");
}

std::vector<Port> read_ports(const npu_program* program, npu_direction direction,
                             const std::string& name) {
  const npu_driver& driver = driver::table();
  const std::string subject = "program " + name;
  std::vector<Port> ports;
  std::size_t count = 0;
  check(driver.program_port_count(program, direction, &count), ErrorKind::kProgram, "program-load",
        subject);
  for (std::size_t i = 0; i < count; ++i) {
    npu_port port{};
    check(driver.program_port(program, direction, i, &port), ErrorKind::kProgram, "program-load",
          subject);
    if (port.rank < 0 && direction == NPU_INPUT) {
      throw Error(ErrorKind::kProgram, "program-load",
                  subject + ": input " + port.name +
                      " must have a rank, got none. Give the model's inputs a rank.");
    }
    const auto rank = static_cast<std::size_t>(std::max(port.rank, 0));
    std::vector<std::int64_t> shape(port.dims, port.dims + rank);
    const bool is_static = port.rank >= 0 && std::none_of(shape.begin(), shape.end(),
                                                          [](std::int64_t dim) { return dim < 0; });
    ports.push_back({port.name, to_torch(port.dtype), std::move(shape), is_static});
  }
  return ports;
}

void check_inputs(const std::string& program, const std::vector<Port>& ports,
                  const std::vector<at::Tensor>& inputs) {
  if (inputs.size() != ports.size()) {
    throw Error(ErrorKind::kInput, "program-input",
                "program " + program + ": takes " + std::to_string(ports.size()) + " inputs, got " +
                    std::to_string(inputs.size()) + ".");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (const std::string problem = mismatch(ports[i], inputs[i]); !problem.empty()) {
      raise_input(program, "input", i, ports[i], problem);
    }
  }
}

}  // namespace npu::program
