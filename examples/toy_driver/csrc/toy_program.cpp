// Reading the text line by line, and the three operations.
#include "toy_program.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace toy {
namespace {

constexpr std::size_t kMaxRank = 12;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument(text);
}

std::string text_of(const Dims& dims) {
  std::string text;
  for (const std::int64_t dim : dims)
    text += (text.empty() ? "" : "x") + (dim == kUnknown ? "?" : std::to_string(dim));
  return text;
}

Dims read_dims(const std::string& text) {
  Dims dims;
  std::int64_t elements = 1;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, 'x');) {
    std::int64_t dim = kUnknown;
    if (part != "?") {
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), dim);
      if (error != std::errc() || end != part.data() + part.size() || dim < 0)
        refuse("dims are numbers with x between them, got " + text);
      if (dim > 0 && elements > kMaxElements / dim) refuse("too many elements: " + text);
      elements *= std::max<std::int64_t>(dim, 1);
    }
    dims.push_back(dim);
  }
  if (dims.empty() || dims.size() > kMaxRank) refuse("dims must be 1 to 12 numbers, got " + text);
  return dims;
}

// The shape of a result, as far as it is known.
Dims result_dims(Op op, const Dims& left, const Dims& right) {
  if (op == Op::kMatmul) {
    if (left.size() != 2 || right.size() != 2) refuse("matmul: both sides must have 2 dims");
    if (left[1] != right[0] && left[1] != kUnknown && right[0] != kUnknown)
      refuse("matmul: " + text_of(left) + " and " + text_of(right) + " do not go together");
    return {left[0], right[1]};
  }
  const Dims one{1};
  if (right == one) return left;
  if (left == one) return right;
  Dims dims = left;
  bool fits = left.size() == right.size();
  for (std::size_t i = 0; fits && i < dims.size(); ++i) {
    fits = left[i] == right[i] || left[i] == kUnknown || right[i] == kUnknown;
    if (left[i] == kUnknown) dims[i] = right[i];
  }
  if (!fits) refuse(text_of(left) + " and " + text_of(right) + " do not go together");
  return dims;
}

class Reader {
 public:
  explicit Reader(std::string_view weights) : weights_(weights) {}

  void read_line(const std::string& line) {
    std::stringstream stream(line.substr(0, line.find('#')));
    std::vector<std::string> words;
    for (std::string word; stream >> word;)
      words.push_back(word);
    if (words.empty()) return;
    if (words.size() == 5 && words[1] == "=") return add_layer(words);
    const std::string& what = words[0];
    if (words.size() == 3 && (what == "input" || what == "weights" || what == "variable"))
      return add_value(what, words[1], read_dims(words[2]));
    if (words.size() == 3 && what == "store") return add_store(find(words[1]), find(words[2]));
    if (words.size() == 2 && what == "output") return program_.ports[1].push_back(find(words[1]));
    refuse("no statement looks like this");
  }

  Program finish() {
    if (program_.ports[1].empty()) refuse("a program needs an output");
    return std::move(program_);
  }

 private:
  std::size_t find(const std::string& name) const {
    for (std::size_t i = 0; i < program_.values.size(); ++i)
      if (program_.values[i].name == name) return i;
    refuse("there is no value called " + name);
  }

  std::size_t add(const std::string& name, Dims dims) {
    for (const Value& value : program_.values)
      if (value.name == name) refuse("there are two values called " + name);
    program_.values.push_back({name, std::move(dims), {}});
    return program_.values.size() - 1;
  }

  void add_value(const std::string& what, const std::string& name, const Dims& dims) {
    const std::size_t value = add(name, dims);
    if (what == "input") return program_.ports[0].push_back(value);
    if (std::find(dims.begin(), dims.end(), kUnknown) != dims.end())
      refuse(what + " must have known dims, got " + text_of(dims));
    std::vector<float>& start = program_.values[value].start;
    const std::size_t count = element_count(dims);
    if (what == "variable") {
      start.assign(count, 0.0F);
      return program_.variables.push_back(value);
    }
    const std::size_t bytes = count * sizeof(float);
    if (bytes > weights_.size()) refuse("the weights end before " + name);
    start.resize(count);
    std::memcpy(start.data(), weights_.data(), bytes);
    weights_.remove_prefix(bytes);
  }

  void add_layer(const std::vector<std::string>& words) {
    std::optional<Op> op;
    for (const Op known : {Op::kAdd, Op::kMul, Op::kMatmul})
      if (words[2] == op_name(known)) op = known;
    if (!op) refuse("there is no operation called " + words[2]);
    const std::size_t left = find(words[3]);
    const std::size_t right = find(words[4]);
    const std::size_t result =
        add(words[0], result_dims(*op, program_.values[left].dims, program_.values[right].dims));
    program_.layers.push_back({*op, left, right, result});
  }

  void add_store(std::size_t variable, std::size_t value) {
    const auto& known = program_.variables;
    if (std::find(known.begin(), known.end(), variable) == known.end())
      refuse(program_.values[variable].name + " is no variable");
    if (program_.values[variable].dims != program_.values[value].dims)
      refuse("a variable keeps its shape");
    program_.stores.emplace_back(variable, value);
  }

  Program program_;
  std::string_view weights_;
};

}  // namespace

Program parse(std::string_view text, std::string_view weights) {
  Reader reader(weights);
  std::stringstream lines{std::string(text)};
  int number = 0;
  try {
    for (std::string line; std::getline(lines, line);) {
      ++number;
      reader.read_line(line);
    }
    return reader.finish();
  } catch (const std::invalid_argument& error) {
    refuse("line " + std::to_string(number) + ": " + error.what());
  }
}

std::size_t element_count(const Dims& dims) {
  std::size_t count = 1;
  for (const std::int64_t dim : dims)
    count *= static_cast<std::size_t>(dim);
  return count;
}

const char* op_name(Op op) {
  return op == Op::kAdd ? "add" : op == Op::kMul ? "mul" : "matmul";
}

namespace {

template <typename Function>
void element_wise(const Array& left, const Array& right, Array& result, Function function) {
  // A side of one value stays where it is while the other one goes on.
  const std::size_t left_step = left.dims == Dims{1} ? 0 : 1;
  const std::size_t right_step = right.dims == Dims{1} ? 0 : 1;
  for (std::size_t i = 0; i < result.data.size(); ++i)
    result.data[i] = function(left.data[i * left_step], right.data[i * right_step]);
}

void matmul(const Array& left, const Array& right, Array& result) {
  const auto rows = static_cast<std::size_t>(left.dims[0]);
  const auto inner = static_cast<std::size_t>(left.dims[1]);
  const auto columns = static_cast<std::size_t>(right.dims[1]);
  std::fill(result.data.begin(), result.data.end(), 0.0F);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < inner; ++k)
      for (std::size_t j = 0; j < columns; ++j)
        result.data[i * columns + j] += left.data[i * inner + k] * right.data[k * columns + j];
}

}  // namespace

void compute(Op op, const Array& left, const Array& right, Array& result) {
  result.dims = result_dims(op, left.dims, right.dims);
  result.data.resize(element_count(result.dims));
  if (op == Op::kAdd) return element_wise(left, right, result, std::plus<float>());
  if (op == Op::kMul) return element_wise(left, right, result, std::multiplies<float>());
  matmul(left, right, result);
}

}  // namespace toy
