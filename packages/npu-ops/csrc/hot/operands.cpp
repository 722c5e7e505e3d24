// Numbers next to tensors, and kernels of the boxed path.

#include "hot/operands.h"

#include <array>

#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>

#include "variants/variant_kernel.h"

namespace npu::ops::hot {
namespace {

// Dtypes in which a kernel gets the same number before and after rounding. Kernels of reduced
// dtypes compute with the unrounded number.
enum Room : std::size_t { kFloat, kDouble, kLong, kRooms };

std::optional<Room> room_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return kFloat;
    case c10::ScalarType::Double:
      return kDouble;
    case c10::ScalarType::Long:
      return kLong;
    default:
      return std::nullopt;
  }
}

// The tensor is kept for the next call; a nested call gets a new one.
template <typename Value>
at::Tensor number_in(Room place, c10::ScalarType dtype, Value value) {
  static thread_local std::array<at::Tensor, kRooms> kept;
  at::Tensor& room = kept[place];
  if (!room.defined() || room.use_count() > 1) room = at::detail::empty_cpu({}, dtype);
  void* data = room.mutable_data_ptr();
  switch (place) {
    case kFloat:
      *static_cast<float*>(data) = static_cast<float>(value);
      break;
    case kDouble:
      *static_cast<double*>(data) = static_cast<double>(value);
      break;
    default:
      *static_cast<std::int64_t*>(data) = static_cast<std::int64_t>(value);
  }
  return room;
}

}  // namespace

c10::KernelFunction boxed_kernel(OpPlan& plan) {
  if (variants::is_declared(plan.name)) {
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<variants::VariantKernel>(plan));
  }
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(plan));
}

at::Tensor number_as(const at::Scalar& number, c10::ScalarType dtype) {
  const std::optional<Room> room = room_of(dtype);
  if (room && number.isFloatingPoint() && *room != kLong) {
    return number_in(*room, dtype, number.toDouble());
  }
  if (room && number.isIntegral(/*includeBool=*/false)) {
    return number_in(*room, dtype, number.toLong());
  }
  return at::native::wrapped_scalar_tensor(number);
}

at::Tensor number_as(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (is_npu(tensor) || tensor.scalar_type() == dtype) return tensor;
  const std::optional<Room> room = room_of(dtype);
  if (room && tensor.scalar_type() == c10::ScalarType::Double && *room != kLong) {
    return number_in(*room, dtype, *tensor.const_data_ptr<double>());
  }
  if (room && tensor.scalar_type() == c10::ScalarType::Long) {
    return number_in(*room, dtype, *tensor.const_data_ptr<std::int64_t>());
  }
  return tensor;
}

std::string full_name(const char* name, const char* overload_name) {
  if (*overload_name == '\0') return name;
  return std::string(name) + "." + overload_name;
}

OpPlan& find_plan(const char* name, const char* overload_name) {
  return ops::plan_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload_name));
}

}  // namespace npu::ops::hot
