// Arrays of Python: torch's tensors in npu_ops._C, numpy's arrays in npu_ops._programs, which links
// no torch. The bindings of kernel programs are compiled once for each (NPU_NUMPY_ARRAYS).
#pragma once

#ifdef NPU_NUMPY_ARRAYS
#include <pybind11/numpy.h>
#else
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>
#endif

#include <pybind11/pybind11.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

namespace npu::ops::python {

namespace py = pybind11;

enum class Element { float32, float16, int64, int32, uint8 };

template <typename T>
constexpr Element element_of() {
  if constexpr (std::is_same_v<T, float>) return Element::float32;
  if constexpr (std::is_same_v<T, std::int64_t>) return Element::int64;
  if constexpr (std::is_same_v<T, std::int32_t>) return Element::int32;
  if constexpr (std::is_same_v<T, std::uint8_t>) return Element::uint8;
}

#ifdef NPU_NUMPY_ARRAYS

using Array = py::array;

inline py::dtype dtype_of(Element element) {
  static constexpr const char* kNames[] = {"float32", "float16", "int64", "int32", "uint8"};
  return py::dtype(kNames[static_cast<int>(element)]);
}

inline bool is_plain(const Array& array, Element element) {
  return (array.flags() & py::array::c_style) && array.dtype().equal(dtype_of(element));
}

inline std::int64_t count_of(const Array& array) {
  return array.size();
}

inline int dims_of(const Array& array) {
  return static_cast<int>(array.ndim());
}

inline std::int64_t size_of(const Array& array, int dim) {
  return array.shape(dim);
}

inline const void* read(const Array& array) {
  return array.data();
}

inline void* write(Array& array) {
  return array.mutable_data();
}

inline Array make_array(Element element, const std::vector<std::int64_t>& shape) {
  return Array(dtype_of(element), std::vector<py::ssize_t>(shape.begin(), shape.end()));
}

inline std::string elements_in_words(const Array& array) {
  return py::str(array.dtype());
}

inline std::string elements_in_words(Element element) {
  return py::str(dtype_of(element));
}

#else

using Array = at::Tensor;

inline at::ScalarType dtype_of(Element element) {
  static constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf, at::kLong, at::kInt,
                                              at::kByte};
  return kTypes[static_cast<int>(element)];
}

inline bool is_plain(const Array& array, Element element) {
  return array.device().is_cpu() && array.is_contiguous() &&
         array.scalar_type() == dtype_of(element);
}

inline std::int64_t count_of(const Array& array) {
  return array.numel();
}

inline int dims_of(const Array& array) {
  return static_cast<int>(array.dim());
}

inline std::int64_t size_of(const Array& array, int dim) {
  return array.size(dim);
}

inline const void* read(const Array& array) {
  return array.const_data_ptr();
}

inline void* write(Array& array) {
  return array.mutable_data_ptr();
}

// Out of memory, torch throws an ordinary error.
inline Array make_array(Element element, const std::vector<std::int64_t>& shape) {
  try {
    return at::empty(shape, dtype_of(element));
  } catch (const c10::Error&) {
    throw std::bad_alloc();
  }
}

inline std::string elements_in_words(const Array& array) {
  return c10::toString(array.scalar_type());
}

inline std::string elements_in_words(Element element) {
  return c10::toString(dtype_of(element));
}

#endif

// Raises ValueError unless `array` is contiguous, on cpu, and has this element type and count.
inline void require_array(const Array& array, const std::string& name, Element element,
                          std::int64_t count) {
  if (is_plain(array, element) && count_of(array) == count) return;
  throw py::value_error("`" + name + "` must be a contiguous cpu tensor of " +
                        std::to_string(count) + " " + elements_in_words(element) + ", got " +
                        std::to_string(count_of(array)) + " " + elements_in_words(array));
}

template <typename T>
const T* data_of(const Array& array, const std::string& name, std::int64_t count) {
  require_array(array, name, element_of<T>(), count);
  return static_cast<const T*>(read(array));
}

}  // namespace npu::ops::python
