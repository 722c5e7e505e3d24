// Wrong results of the simulated device: flips one bit of one output value after some runs, and
// records the flips for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::sim {

// A flipped value. `before` and `after` are the values of the element.
struct Flip {
  std::int64_t run;  // among the selected runs, from 0
  std::string program;
  std::size_t output;
  std::int64_t element;  // in memory order
  std::int32_t bit;
  double before;
  double after;
};

// The record since flips were requested.
struct FlipReport {
  std::int64_t runs;
  std::vector<Flip> flips;
};

// Each run of a program whose name matches `pattern` (fnmatch) is hit with `probability`. `bit`
// counts from the least significant; -1 is the highest below the sign, in a floating-point number
// the exponent's highest. Resets the record.
NPU_API void begin_flips(double probability, std::uint64_t seed, std::string pattern,
                         std::int32_t bit);
// Stops flipping bits; the record is kept.
NPU_API void end_flips();
NPU_API FlipReport flip_report();

// Called by the table: a request's program, and the successful end of a run.
void note_request(const npu_request* request, const npu_program* program);
void forget_request(const npu_request* request);
npu_status flip_after_run(const npu_driver& base, npu_request* request);

}  // namespace npu::sim
