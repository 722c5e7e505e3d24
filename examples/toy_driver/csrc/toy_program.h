// The toy chip's programs: a text format, and its evaluation in float32.
//
// One statement a line; `#` starts a comment. DIMS are like 2x3, and ? is a length that is known
// only when the program runs.
//
//     input NAME DIMS
//     weights NAME DIMS      the next values of the program's weights; no ? here
//     variable NAME DIMS     starts at zeros, and keeps its values between the runs of a request
//     NAME = add A B         element by element; one of the two may be a single value
//     NAME = mul A B         the same
//     NAME = matmul A B      (m, k) by (k, n)
//     store VARIABLE NAME    once all of the above is computed
//     output NAME
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace toy {

constexpr std::int64_t kUnknown = -1;
using Dims = std::vector<std::int64_t>;

enum class Op { kAdd, kMul, kMatmul };

struct Value {
  std::string name;
  Dims dims;
  std::vector<float> start;  // of weights and variables
};

struct Layer {
  Op op;
  std::size_t left;
  std::size_t right;
  std::size_t result;
};

// Numbers stand for positions in `values`.
struct Program {
  std::vector<Value> values;
  std::vector<Layer> layers;
  std::vector<std::size_t> ports[2];  // inputs and outputs
  std::vector<std::size_t> variables;
  std::vector<std::pair<std::size_t, std::size_t>> stores;  // variable, new value
};

// Throws std::invalid_argument with the line that is wrong.
Program parse(std::string_view text, std::string_view weights);

struct Array {
  Dims dims;
  std::vector<float> data;
};

// The size of dims that are all known.
std::size_t element_count(const Dims& dims);

const char* op_name(Op op);

// Throws std::invalid_argument where the shapes do not go together.
void compute(Op op, const Array& left, const Array& right, Array& result);

}  // namespace toy
