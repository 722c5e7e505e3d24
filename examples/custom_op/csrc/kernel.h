// The arithmetic of add_custom, element by element. It knows neither torch nor the device.
#pragma once

#include <cstdint>

// --8<-- [start:kernel]
// result[i] = x[i] + alpha * y[i], computed in Compute: float for half precision, else T itself.
template <typename T, typename Compute>
void add_elements(const T* x, const T* y, T* result, std::int64_t count, Compute alpha) {
  for (std::int64_t i = 0; i < count; ++i) {
    result[i] = static_cast<T>(static_cast<Compute>(x[i]) + alpha * static_cast<Compute>(y[i]));
  }
}
// --8<-- [end:kernel]
