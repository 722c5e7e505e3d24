// Selects runs and flips bits. Outputs are in the bound memory, or in the request's own.
#include "driver/sim_flips.h"

#include <fnmatch.h>

#include <array>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace npu::sim {
namespace {

struct Flips {
  std::mutex mutex;
  std::unordered_map<const npu_request*, const npu_program*> programs;
  bool is_on = false;
  double probability = 0;
  std::string pattern;
  std::int32_t bit = -1;
  std::mt19937_64 random;
  FlipReport report{};
};

Flips& state() {
  static auto* instance = new Flips;
  return *instance;
}

// Calls `body` with a value of the C++ type of `dtype`; false for a dtype without one.
template <typename Body>
bool with_type(npu_dtype dtype, Body body) {
  switch (dtype) {
    case NPU_DTYPE_BOOL:
    case NPU_DTYPE_UINT8:
      return body(std::uint8_t{}), true;
    case NPU_DTYPE_INT8:
      return body(std::int8_t{}), true;
    case NPU_DTYPE_INT16:
      return body(std::int16_t{}), true;
    case NPU_DTYPE_INT32:
      return body(std::int32_t{}), true;
    case NPU_DTYPE_INT64:
      return body(std::int64_t{}), true;
    case NPU_DTYPE_FLOAT16:
      return body(c10::Half{}), true;
    case NPU_DTYPE_BFLOAT16:
      return body(c10::BFloat16{}), true;
    case NPU_DTYPE_FLOAT32:
      return body(float{}), true;
    case NPU_DTYPE_FLOAT64:
      return body(double{}), true;
    case NPU_DTYPE_INVALID:
      break;
  }
  return false;
}

std::int32_t chosen_bit(npu_dtype dtype, std::size_t size_bytes, std::int32_t asked) {
  if (dtype == NPU_DTYPE_BOOL) return 0;  // another bit would give a byte that is not a bool
  const auto bits = static_cast<std::int32_t>(8 * size_bytes);
  if (asked >= 0) return asked < bits ? asked : bits - 1;
  return dtype == NPU_DTYPE_UINT8 ? bits - 1 : bits - 2;
}

// Flips one bit of the element, and returns the bit and both values.
void flip(npu_dtype dtype, void* data, Flip& told, std::int32_t asked) {
  with_type(dtype, [&](auto value) {
    char* const place = static_cast<char*>(data) + told.element * sizeof(value);
    std::array<unsigned char, sizeof(value)> bytes{};
    std::memcpy(&value, place, sizeof(value));
    told.before = static_cast<double>(value);
    std::memcpy(bytes.data(), &value, sizeof(value));
    told.bit = chosen_bit(dtype, sizeof(value), asked);
    bytes[static_cast<std::size_t>(told.bit / 8)] ^=
        static_cast<unsigned char>(1U << (told.bit % 8));
    std::memcpy(&value, bytes.data(), sizeof(value));
    told.after = static_cast<double>(value);
    std::memcpy(place, &value, sizeof(value));
  });
}

struct Output {
  std::size_t index;
  npu_dtype dtype;
  std::int64_t elements;
  void* data;
};

// The non-empty outputs of the latest run.
npu_status read_outputs(const npu_driver& base, npu_request* request, const npu_program* program,
                        std::vector<Output>& outputs) {
  std::size_t count = 0;
  if (const auto status = base.program_port_count(program, NPU_OUTPUT, &count); status != NPU_OK)
    return status;
  for (std::size_t i = 0; i < count; ++i) {
    npu_port port{};
    const void* data = nullptr;
    if (const auto status = base.request_output(request, i, &port, &data); status != NPU_OK)
      return status;
    std::int64_t elements = with_type(port.dtype, [](auto) {}) ? 1 : 0;
    for (std::int32_t axis = 0; axis < port.rank; ++axis)
      elements *= port.dims[axis];
    if (elements > 0) outputs.push_back({i, port.dtype, elements, const_cast<void*>(data)});
  }
  return NPU_OK;
}

std::string name_of(const npu_driver& base, const npu_program* program) {
  std::array<char, 256> name{};
  const npu_status status =
      base.program_property(program, "NETWORK_NAME", name.data(), name.size());
  return status == NPU_OK ? name.data() : std::string();
}

std::int64_t draw(std::mt19937_64& random, std::int64_t count) {
  return std::uniform_int_distribution<std::int64_t>(0, count - 1)(random);
}

}  // namespace

void begin_flips(double probability, std::uint64_t seed, std::string pattern, std::int32_t bit) {
  Flips& all = state();
  const std::lock_guard lock(all.mutex);
  all.is_on = true;
  all.probability = probability;
  all.pattern = std::move(pattern);
  all.bit = bit;
  all.random.seed(seed);
  all.report = {};
}

void end_flips() {
  Flips& all = state();
  const std::lock_guard lock(all.mutex);
  all.is_on = false;
}

FlipReport flip_report() {
  Flips& all = state();
  const std::lock_guard lock(all.mutex);
  return all.report;
}

void note_request(const npu_request* request, const npu_program* program) {
  Flips& all = state();
  const std::lock_guard lock(all.mutex);
  all.programs[request] = program;
}

void forget_request(const npu_request* request) {
  Flips& all = state();
  const std::lock_guard lock(all.mutex);
  all.programs.erase(request);
}

npu_status flip_after_run(const npu_driver& base, npu_request* request) {
  Flips& all = state();
  const std::lock_guard lock(all.mutex);
  if (!all.is_on) return NPU_OK;
  const npu_program* const program = all.programs.at(request);
  std::string name = name_of(base, program);
  if (fnmatch(all.pattern.c_str(), name.c_str(), 0) != 0) return NPU_OK;
  const std::int64_t run = all.report.runs++;
  if (!std::bernoulli_distribution(all.probability)(all.random)) return NPU_OK;
  std::vector<Output> outputs;
  if (const auto status = read_outputs(base, request, program, outputs); status != NPU_OK)
    return status;
  if (outputs.empty()) return NPU_OK;
  const Output& hit = outputs[static_cast<std::size_t>(
      draw(all.random, static_cast<std::int64_t>(outputs.size())))];
  Flip told{.run = run,
            .program = std::move(name),
            .output = hit.index,
            .element = draw(all.random, hit.elements),
            .bit = 0,
            .before = 0,
            .after = 0};
  flip(hit.dtype, hit.data, told, all.bit);
  all.report.flips.push_back(std::move(told));
  return NPU_OK;
}

}  // namespace npu::sim
