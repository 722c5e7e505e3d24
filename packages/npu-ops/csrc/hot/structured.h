// Runs a torch op with a TensorIterator on npu memory: new result, in-place or `out=`. Torch's
// class determines the result's metadata (meta) and computes it (impl); this file provides the
// memory and the code around a host kernel.
#pragma once

#include <type_traits>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>

#include "hot/operands.h"

namespace npu::ops::hot {

// Thrown from meta if the hot kernels do not support a call: torch's classes have no other way to
// stop. Rare, for example an `out` that must be resized.
struct Unfit {};

// A fresh tensor for `sizes`, on the current device.
inline at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                             const at::TensorOptions& options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  constexpr c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  if (strides.empty()) {
    return at::detail::empty_generic(sizes, device_allocator(), key, dtype,
                                     options.memory_format_opt());
  }
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), key, dtype);
}

// Torch's class with one output, allocated here.
template <typename Structured>
class Fresh final : public Structured {
 public:
  void set_output_strided(std::int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }
  void set_output_raw_strided(std::int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    output = new_tensor(sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }
  const at::Tensor& maybe_get_output(std::int64_t) override { return output; }

  at::Tensor output;
};

// Torch's class with the caller's output, which must have the right size.
template <typename Structured>
class Given final : public Structured {
 public:
  explicit Given(const at::Tensor& given) : output(given) {}

  void set_output_strided(std::int64_t, at::IntArrayRef, at::IntArrayRef,
                          at::TensorOptions) override {
    throw Unfit();
  }
  void set_output_raw_strided(std::int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    if (output.sizes() != sizes || output.dtype() != options.dtype()) throw Unfit();
    Structured::set_output_raw_strided(index, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(std::int64_t) override { return output; }

  const at::Tensor& output;
};

// Torch's CPU kernels read every input as the common dtype; on other devices the iterator leaves
// the conversion to the kernel. Comparisons write bools.
inline bool is_uniform(const at::TensorIteratorBase& iterator) {
  const c10::ScalarType common = iterator.common_dtype();
  for (int i = iterator.noutputs(); i < iterator.ntensors(); ++i) {
    if (iterator.dtype(i) != common) return false;
  }
  return iterator.dtype(0) == common || iterator.dtype(0) == c10::ScalarType::Bool;
}

// An argument in the form of torch's classes.
template <typename Argument>
const Argument& as_meta(const Argument& argument, c10::ScalarType) {
  return argument;
}
inline at::Tensor as_meta(const at::Tensor& argument, c10::ScalarType dtype) {
  return number_as(argument, dtype);
}
inline at::OptionalScalarRef as_meta(const std::optional<at::Scalar>& argument, c10::ScalarType) {
  return argument ? at::OptionalScalarRef(&*argument) : at::OptionalScalarRef();
}

// Runs the op prepared by meta. The windows cover the iterator's operands: an argument may have
// been cast before.
template <typename Prepared, typename... Arguments>
void compute(Prepared& op, const char* name, const Arguments&... arguments) {
  Windows windows;
  if (C10_UNLIKELY(!is_host_access_free())) {
    for (int i = 0; i < op.ntensors(); ++i)
      windows.open(op.tensor(i));
  }
  run_observed(name, [&] { op.impl(arguments..., op.output); });
}

enum class Numbers : bool { kNo, kYes };

// The kernel of `Op`, one of at::_ops, by torch's class for it.
template <typename Op, typename Structured, Numbers numbers, typename Schema = typename Op::schema>
struct Kernel;

template <typename Op, typename Structured, Numbers numbers, typename... Arguments>
struct Kernel<Op, Structured, numbers, at::Tensor(Arguments...)> {
  static at::Tensor call(c10::DispatchKeySet keys, Arguments... arguments) {
    Inspection inspection(numbers == Numbers::kYes);
    (inspection.see(arguments), ...);
    if (C10_UNLIKELY(!inspection.is_fit() || is_boxed<Op>()))
      return Boxed<Op>::call(keys, arguments...);
    check_call(name_of<Op>());
    const c10::OptionalDeviceGuard guard(to_switch_to(inspection.device_index()));
    Fresh<Structured> op;
    const auto run = [&](const auto&... converted) {
      op.meta(converted...);
      if (C10_UNLIKELY(!is_uniform(op))) return false;
      compute(op, name_of<Op>(), converted...);
      return true;
    };
    bool is_done = false;
    try {
      is_done = run(as_meta(arguments, inspection.dtype())...);
    } catch (const Unfit&) {
    }
    return is_done ? std::move(op.output) : Boxed<Op>::call(keys, arguments...);
  }
};

// In-place ops have the written argument first.
template <typename Op, typename Structured, Numbers numbers, typename... Arguments>
struct Kernel<Op, Structured, numbers, at::Tensor&(Arguments...)> {
  static at::Tensor& call(c10::DispatchKeySet keys, Arguments... arguments) {
    Inspection inspection(numbers == Numbers::kYes);
    (inspection.see(arguments), ...);
    if (C10_UNLIKELY(!inspection.is_fit() || is_boxed<Op>()))
      return Boxed<Op>::call(keys, arguments...);
    check_call(name_of<Op>());
    bool is_done = false;
    try {
      is_done = run(inspection.dtype(), arguments...);
    } catch (const Unfit&) {
    }
    return is_done ? written(arguments...) : Boxed<Op>::call(keys, arguments...);
  }

 private:
  static constexpr bool kIsInPlace =
      std::is_same_v<std::tuple_element_t<0, std::tuple<Arguments...>>, at::Tensor&>;

  static at::Tensor& written(Arguments... arguments) {
    if constexpr (kIsInPlace) {
      return std::get<0>(std::tie(arguments...));
    } else {
      return std::get<sizeof...(Arguments) - 1>(std::tie(arguments...));
    }
  }

  static bool run(c10::ScalarType dtype, Arguments... arguments) {
    Given<Structured> op(written(arguments...));
    const auto with = [&](const auto&... converted) {
      op.meta(converted...);
      if (C10_UNLIKELY(!is_uniform(op))) return false;
      compute(op, name_of<Op>(), converted...);
      return true;
    };
    if constexpr (kIsInPlace) {
      return with(as_meta(arguments, dtype)...);
    } else {
      const auto all = std::tie(arguments...);
      return [&]<std::size_t... i>(std::index_sequence<i...>) {
        return with(as_meta(std::get<i>(all), dtype)...);
      }(std::make_index_sequence<sizeof...(Arguments) - 1>());
    }
  }
};

}  // namespace npu::ops::hot
