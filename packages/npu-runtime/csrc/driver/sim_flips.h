// Wrong results of the simulated device: after a run, now and then, one bit of one value of one of
// its outputs is flipped, and which one is kept for the test that asked for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "npu/driver.h"
#include "npu/export.h"

namespace npu::sim {

// A value that was made wrong. `before` and `after` are what the element was and is.
struct Flip {
  std::int64_t run;  // among the runs that were looked at, from 0
  std::string program;
  std::size_t output;
  std::int64_t element;  // in the memory's order
  std::int32_t bit;
  double before;
  double after;
};

// What has happened since flips were asked for.
struct FlipReport {
  std::int64_t runs;
  std::vector<Flip> flips;
};

// Each run of a program whose name matches `pattern` (as fnmatch does) is hit with `probability`.
// `bit` counts from the least significant; -1 is the highest below the sign, which in a floating
// point number is the exponent's highest. Starts the report again.
NPU_API void begin_flips(double probability, std::uint64_t seed, std::string pattern,
                         std::int32_t bit);
// No run is hit any more; the report stays.
NPU_API void end_flips();
NPU_API FlipReport flip_report();

// What the table tells: which program a request runs, and that a run has ended well.
void note_request(const npu_request* request, const npu_program* program);
void forget_request(const npu_request* request);
npu_status flip_after_run(const npu_driver& base, npu_request* request);

}  // namespace npu::sim
