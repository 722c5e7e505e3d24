// Kernel programs for npu_ops.kernel_programs.execution. All inputs of a step or a program are
// checked here, because kernels do not validate.
#include "python/kernel_program.h"

#include <pybind11/stl.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>

#include "kernel_programs/thread_pool.h"
#include "python/kernel_weights.h"
#include "python/module.h"

namespace npu::ops::python {
namespace {

using namespace kernel_programs;

constexpr int kBlocksOfSlab = 16;
constexpr std::size_t kCacheLine = 64;

[[noreturn]] void refuse(const std::string& what) {
  throw py::value_error(what);
}

void require(bool is_so, const std::string& what) {
  if (!is_so) refuse(what);
}

template <typename T>
T chosen(const std::string& name, const std::map<std::string, T>& choices) {
  const auto found = choices.find(name);
  if (found == choices.end()) refuse(name + ": is not known");
  return found->second;
}

Activation activation_of(const py::object& name) {
  if (name.is_none()) return Activation::none;
  return chosen<Activation>(py::cast<std::string>(name), {{"relu", Activation::relu},
                                                          {"gelu", Activation::gelu},
                                                          {"gelu_tanh", Activation::gelu_tanh},
                                                          {"silu", Activation::silu},
                                                          {"sigmoid", Activation::sigmoid},
                                                          {"tanh", Activation::tanh},
                                                          {"quick_gelu", Activation::quick_gelu}});
}

// Reads and checks instructions in the format of npu_ops.kernel_programs.program.
class Reader {
 public:
  Reader(const py::dict& weights, std::vector<int> widths, std::vector<LayerCache> layers)
      : weights_(weights), widths_(std::move(widths)), layers_(std::move(layers)) {}

  Instruction read(const py::dict& one) {
    const auto kind = py::cast<std::string>(one["kind"]);
    where_ = kind;
    if (kind == "Embed") return embed(one);
    if (kind == "Norm") return norm(one);
    if (kind == "Linear") return linear(one);
    if (kind == "Rotate") return rotate(one);
    if (kind == "Append") return append(one);
    if (kind == "Attend") return attend(one);
    if (kind == "Combine") return combine(one);
    if (kind == "Keep") return Keep{view(one["input"]), view(one["out"], view(one["input"]).width)};
    if (kind == "Experts") return experts(one);
    if (kind == "Load") {
      return Load{view(one["out"]), place(one["argument"], one["out"], arguments)};
    }
    if (kind == "Store") {
      return Store{view(one["input"]), place(one["result"], one["input"], results)};
    }
    refuse(kind + ": no such instruction");
  }

  View view(const py::object& columns, int width = -1) {
    if (columns.is_none()) return View{};
    const View found{py::cast<int>(columns["buffer"]), py::cast<int>(columns["start"]),
                     py::cast<int>(columns["width"])};
    require(found.buffer >= 0 && found.buffer < static_cast<int>(widths_.size()) &&
                found.start >= 0 && found.width > 0 &&
                found.start + found.width <= widths_[found.buffer],
            where_ + ": columns must be in their buffer");
    require(width < 0 || found.width == width, where_ + ": columns must be " +
                                                   std::to_string(width) + " wide, got " +
                                                   std::to_string(found.width));
    return found;
  }

  std::vector<Array> held;              // memory referenced by the instructions
  std::int64_t positions = -1;          // length of the shortest table; -1 without tables
  std::vector<int> arguments, results;  // widths of the loaded and stored rows

 private:
  py::object weight(const py::object& name) {
    if (!weights_.contains(name)) {
      refuse(where_ + ": weight " + py::cast<std::string>(py::str(name)) + " is missing");
    }
    return weights_[name];
  }

  // The next row argument or result of a call; they are numbered in order.
  int place(const py::object& number, const py::object& columns, std::vector<int>& rows) {
    require(py::cast<int>(number) == static_cast<int>(rows.size()),
            where_ + ": numbers must ascend from 0 in steps of 1");
    rows.push_back(view(columns).width);
    return static_cast<int>(rows.size()) - 1;
  }

  const float* vector(const py::object& name, std::int64_t count) {
    if (name.is_none()) return nullptr;
    held.push_back(py::cast<Array>(weight(name)));
    return data_of<float>(held.back(), py::cast<std::string>(name), count);
  }

  PackedLinear packed(const py::object& name) {
    return packed_linear(weight(name), py::cast<std::string>(name), held);
  }

  NormOptions norm_options(const py::object& options, int width) {
    const int parts = py::cast<int>(options["parts"]);
    require(parts > 0 && width % parts == 0, "Norm: parts must divide the width");
    return {.is_rms = chosen<bool>(py::cast<std::string>(options["kind"]),
                                   {{"rms", true}, {"layer", false}}),
            .eps = py::cast<float>(options["eps"]),
            .weight = vector(options["weight"], width / parts),
            .bias = vector(options["bias"], width / parts),
            .parts = parts};
  }

  Instruction embed(const py::dict& one) {
    const PackedLinear table = packed(one["table"]);
    const bool by_position = py::cast<std::string>(one["index"]) == "position";
    if (by_position)
      bound_positions(table.outputs);
    else
      entries = std::min<std::int64_t>(entries, table.outputs);
    return Embed{view(one["out"], table.inputs), table, by_position, py::cast<float>(one["scale"])};
  }

  Instruction norm(const py::dict& one) {
    const View input = view(one["input"]);
    return Norm{input, view(one["out"], input.width), norm_options(one["options"], input.width)};
  }

  Instruction linear(const py::dict& one) {
    Linear made{};
    made.weight = packed(one["weight"]);
    made.is_gated = py::cast<bool>(one["gated"]);
    const int outputs = made.is_gated ? made.weight.outputs / 2 : made.weight.outputs;
    require(!made.is_gated || made.weight.outputs % 32 == 0,
            "Linear: a gate's blocks come in pairs");
    made.input = view(one["input"], made.weight.inputs);
    made.out = view(one["out"], outputs);
    made.bias = vector(one["bias"], made.weight.outputs);
    made.has_norm = !one["norm"].is_none();
    if (made.has_norm) made.norm = norm_options(one["norm"], made.weight.inputs);
    made.activation = activation_of(one["activation"]);
    if (!one["residual"].is_none()) made.residual = view(one["residual"], outputs);
    made.factor = py::cast<float>(one["factor"]);
    made.soft_cap = one["soft_cap"].is_none() ? 0 : py::cast<float>(one["soft_cap"]);
    require(made.out.buffer != made.input.buffer ||
                made.out.start >= made.input.start + made.input.width ||
                made.input.start >= made.out.start + made.out.width,
            "Linear: out must not be the input");
    return made;
  }

  Instruction rotate(const py::dict& one) {
    const View values = view(one["values"]);
    const int heads = py::cast<int>(one["heads"]);
    require(heads > 0 && values.width % heads == 0, "Rotate: heads must divide the width");
    const int size = values.width / heads;
    require(size <= kMostHeadSize, "Rotate: heads are at most " + std::to_string(kMostHeadSize));
    const auto own = py::cast<Array>(weight(one["own"]));
    const std::int64_t count = count_of(own) / size;
    bound_positions(count);
    held.push_back(py::cast<Array>(weight(one["partner"])));
    const auto* partner = data_of<std::int32_t>(held.back(), "partner", size);
    for (int i = 0; i < size; ++i) {
      require(partner[i] >= 0 && partner[i] < size, "Rotate: partners must be in the head");
    }
    return Rotate{values, heads, vector(one["own"], count * size),
                  vector(one["other"], count * size), partner};
  }

  const LayerCache& layer(const py::dict& one) {
    const int index = py::cast<int>(one["layer"]);
    require(index >= 0 && index < static_cast<int>(layers_.size()), where_ + ": no such layer");
    return layers_[index];
  }

  Instruction append(const py::dict& one) {
    const LayerCache& cache = layer(one);
    return Append{view(one["keys"], cache.key_heads * cache.key_size),
                  view(one["values"], cache.key_heads * cache.value_size),
                  py::cast<int>(one["layer"])};
  }

  Instruction attend(const py::dict& one) {
    const LayerCache& cache = layer(one);
    const int heads = py::cast<int>(one["heads"]);
    require(heads > 0 && heads % cache.key_heads == 0, "Attend: key heads must divide the heads");
    const auto number = [&](const char* name) {
      return one[name].is_none() ? 0.0 : py::cast<double>(one[name]);
    };
    return Attend{view(one["queries"], heads * cache.key_size),
                  view(one["out"], heads * cache.value_size),
                  py::cast<int>(one["layer"]),
                  heads,
                  {.scale = static_cast<float>(number("scale")),
                   .window = static_cast<std::int64_t>(number("window")),
                   .soft_cap = static_cast<float>(number("soft_cap")),
                   .sinks = vector(one["sinks"], heads),
                   .slopes = vector(one["slopes"], heads)}};
  }

  Instruction combine(const py::dict& one) {
    Combine made{};
    made.out = view(one["out"]);
    made.left = view(one["left"], made.out.width);
    const auto op = py::cast<std::string>(one["op"]);
    made.multiplies = op == "mul";
    if (op != "copy") {
      if (py::isinstance<py::str>(one["right"])) {
        made.vector = vector(one["right"], made.out.width);
      } else {
        made.right = view(one["right"], made.out.width);
      }
    }
    made.activation = activation_of(one["activation"]);
    made.factor = py::cast<float>(one["factor"]);
    return made;
  }

  Instruction experts(const py::dict& one) {
    Experts made{};
    made.input = view(one["input"]);
    const auto gate_up = py::cast<std::vector<py::object>>(one["gate_up"]);
    const auto down = py::cast<std::vector<py::object>>(one["down"]);
    const int count = static_cast<int>(gate_up.size());
    require(count > 0 && down.size() == gate_up.size(), "Experts: each needs gate, up and down");
    made.scores = view(one["scores"], count);
    made.out = view(one["out"]);
    if (!one["residual"].is_none()) made.residual = view(one["residual"], made.out.width);
    made.chosen = py::cast<int>(one["chosen"]);
    require(made.chosen > 0 && made.chosen <= count,
            "Experts: the chosen number must be 1 to the number of experts");
    made.shares = chosen<Shares>(py::cast<std::string>(one["shares"]),
                                 {{"softmax", Shares::softmax},
                                  {"softmax_normalized", Shares::softmax_of_chosen},
                                  {"sigmoid", Shares::sigmoid}});
    made.activation = activation_of(one["activation"]);
    made.limit = one["limit"].is_none() ? 0 : py::cast<float>(one["limit"]);
    for (int i = 0; i < count; ++i) {
      made.gate_up.push_back(packed(gate_up[i]));
      made.down.push_back(packed(down[i]));
      const PackedLinear &up = made.gate_up.back(), &out = made.down.back();
      require(up.kind == made.gate_up.front().kind && out.kind == made.down.front().kind &&
                  up.inputs == made.input.width && up.outputs == 2 * out.inputs &&
                  up.outputs % 32 == 0 && out.outputs == made.out.width,
              "Experts: all must have the same shapes and kinds");
    }
    const auto biases = [&](const char* name, int width, std::vector<const float*>& to) {
      if (one[name].is_none()) return;
      for (const py::object& bias : py::cast<std::vector<py::object>>(one[name])) {
        to.push_back(vector(bias, width));
      }
      require(static_cast<int>(to.size()) == count, "Experts: each needs a bias");
    };
    biases("gate_up_bias", made.gate_up.front().outputs, made.gate_up_bias);
    biases("down_bias", made.out.width, made.down_bias);
    return made;
  }

  void bound_positions(std::int64_t count) {
    positions = positions < 0 ? count : std::min(positions, count);
  }

  const py::dict& weights_;
  std::vector<int> widths_;
  std::vector<LayerCache> layers_;
  std::string where_;

 public:
  std::int64_t entries = std::numeric_limits<std::int64_t>::max();  // tokens are below this
};

}  // namespace

KernelProgram::KernelProgram(const py::list& instructions, std::vector<int> widths,
                             const py::list& layers, const py::object& logits,
                             const py::dict& weights, const std::string& cache,
                             const std::optional<std::string>& set, int chosen_blocks,
                             std::int64_t after) {
  require(chosen_blocks == 0 || (chosen_blocks >= kFewestBlocks && chosen_blocks < (1 << 24)),
          "`chosen_blocks` must be at least " + std::to_string(kFewestBlocks) + ", or 0 for all");
  const auto kind = chosen<CacheKind>(
      cache,
      {{"float32", CacheKind::float32}, {"bfloat16", CacheKind::bfloat16}, {"u8", CacheKind::u8}});
  std::vector<LayerCache> caches;
  for (const auto& layer : layers) {
    LayerCache one{kind,
                   py::cast<int>(layer["key_heads"]),
                   py::cast<int>(layer["key_size"]),
                   py::cast<int>(layer["value_size"]),
                   block_bytes_,
                   chosen_blocks > 0};
    require(one.key_heads > 0 && one.key_size > 0 && one.value_size > 0 &&
                one.key_size <= kMostHeadSize && one.value_size <= kMostHeadSize,
            "layers: sizes must be 1 to " + std::to_string(kMostHeadSize));
    block_bytes_ += (one.bytes() + 63) / 64 * 64;
    caches.push_back(one);
  }
  Reader reader(weights, widths, caches);
  std::vector<Instruction> list;
  for (const auto& one : instructions)
    list.push_back(reader.read(py::cast<py::dict>(one)));
  const View result = logits.is_none() ? View{} : reader.view(logits);
  check_logits(list, result);
  arguments_ = std::move(reader.arguments);
  results_ = std::move(reader.results);
  held_ = std::move(reader.held);
  positions_ = reader.positions;
  entries_ = reader.entries;
  logits_ = result;
  if (result.buffer >= 0) logits_width_ = widths[result.buffer];
  const char* name = set ? set->c_str() : nullptr;
  const LinearKernels* linear = linear_kernels(name);
  const RowKernels* row = row_kernels(name);
  require(linear != nullptr && row != nullptr, "this processor has no such instruction set");
  program_ = std::make_unique<Program>(std::move(list), widths, std::move(caches), result, *linear,
                                       *row, BlockSelection{chosen_blocks, after});
}

Array KernelProgram::step(const Array& tokens, const Array& positions, const Array& sequences,
                          const Array& slots, const Array& tables, const Array& kept, int workers,
                          std::optional<Array> times, bool is_decode) {
  Rows rows;
  rows.is_decode = is_decode;
  rows.count = static_cast<int>(count_of(tokens));
  rows.kept_count = static_cast<int>(count_of(kept));
  require(logits_.buffer >= 0, "step: this program has no logits");
  require(count_of(tokens) > 0 && count_of(tokens) < (1 << 24),
          "`tokens` must have 1 to 2^24 - 1 elements, got " + std::to_string(count_of(tokens)));
  require(dims_of(tables) == 2, "`block_tables` must be (sequences, blocks)");
  rows.tokens = data_of<std::int64_t>(tokens, "tokens", rows.count);
  rows.positions = data_of<std::int64_t>(positions, "positions", rows.count);
  rows.sequences = data_of<std::int32_t>(sequences, "sequences", rows.count);
  rows.slots = data_of<std::int32_t>(slots, "slots", rows.count);
  rows.block_tables = data_of<std::int32_t>(tables, "block_tables", count_of(tables));
  rows.table_width = static_cast<int>(size_of(tables, 1));
  rows.kept = data_of<std::int64_t>(kept, "kept", rows.kept_count);
  check(rows, static_cast<int>(size_of(tables, 0)));
  require(has_keep_ || rows.kept_count == rows.count,
          "kept: this program chooses no rows, so all must be kept, in their order");
  StepTimes durations;
  if (times) {
    const auto stages = static_cast<std::int64_t>(program_->stages().size());
    require(
        is_plain(*times, Element::int64) && count_of(*times) == (1 + std::max(workers, 1)) * stages,
        "`times` must be int64, of (1 + workers, stages)");
    durations.stages = static_cast<std::int64_t*>(write(*times));
    durations.workers = durations.stages + stages;
  }
  Array out = make_array(Element::float32, {rows.kept_count, logits_width_});
  auto* computed = static_cast<float*>(write(out));
  {
    rows.blocks = blocks_;
    const py::gil_scoped_release unlocked;
    program_->run(rows, computed, workers, durations);
  }
  if (logits_.width == logits_width_) return out;
  Array logits = make_array(Element::float32, {rows.kept_count, logits_.width});
  auto* to = static_cast<float*>(write(logits));
  for (int row = 0; row < rows.kept_count; ++row) {
    const float* from = computed + static_cast<std::size_t>(row) * logits_width_ + logits_.start;
    std::copy_n(from, logits_.width, to + static_cast<std::size_t>(row) * logits_.width);
  }
  return logits;
}

void KernelProgram::run_rows(int rows, const float* const* arguments, float* const* results,
                             int workers, const StepTimes& durations) {
  Rows given;
  given.count = given.kept_count = rows;
  given.arguments = arguments;
  given.results = results;
  program_->run(given, nullptr, workers, durations);
}

void KernelProgram::reserve(std::int64_t count) {
  require(count >= 0 && count < (std::int64_t{1} << 31), "`blocks` must be 0 to 2^31 - 1");
  if (static_cast<std::int64_t>(blocks_->size()) >= count) return;
  std::vector<unsigned char*> blocks = *blocks_;  // a step may be reading the old ones
  auto slabs = slabs_;
  while (static_cast<std::int64_t>(blocks.size()) < count) {
    auto* memory = static_cast<unsigned char*>(
        std::aligned_alloc(kCacheLine, std::max(kCacheLine, kBlocksOfSlab * block_bytes_)));
    if (memory == nullptr) throw std::bad_alloc();
    slabs.emplace_back(memory, &std::free);
    for (int i = 0; i < kBlocksOfSlab; ++i)
      blocks.push_back(memory + i * block_bytes_);
  }
  blocks_ = std::make_shared<const std::vector<unsigned char*>>(std::move(blocks));
  slabs_ = std::move(slabs);
}

void KernelProgram::copy_block(std::int64_t source, std::int64_t target) {
  std::memcpy(block(target), block(source), block_bytes_);
}

Array KernelProgram::read_blocks(const std::vector<std::int64_t>& ids) {
  Array out = make_array(Element::uint8, {static_cast<std::int64_t>(ids.size()),
                                          static_cast<std::int64_t>(block_bytes_)});
  auto* to = static_cast<unsigned char*>(write(out));
  for (std::size_t i = 0; i < ids.size(); ++i)
    std::memcpy(to + i * block_bytes_, block(ids[i]), block_bytes_);
  return out;
}

void KernelProgram::write_blocks(const std::vector<std::int64_t>& ids, const Array& content) {
  const auto* from = data_of<std::uint8_t>(content, "content",
                                           static_cast<std::int64_t>(ids.size() * block_bytes_));
  for (std::size_t i = 0; i < ids.size(); ++i)
    std::memcpy(block(ids[i]), from + i * block_bytes_, block_bytes_);
}

unsigned char* KernelProgram::block(std::int64_t id) {
  require(
      id >= 0 && id < static_cast<std::int64_t>(blocks_->size()),
      "`block` must be below " + std::to_string(blocks_->size()) + ", got " + std::to_string(id));
  return (*blocks_)[id];
}

// Logits have one row per kept row: their buffer must not have more.
void KernelProgram::check_logits(const std::vector<Instruction>& list, const View& logits) {
  bool is_early = false;
  for (const Instruction& instruction : list) {
    if (std::holds_alternative<Keep>(instruction)) has_keep_ = true;
    const int written = std::visit(
        [](const auto& one) {
          if constexpr (requires { one.out.buffer; }) return one.out.buffer;
          return -1;
        },
        instruction);
    is_early = is_early || (!has_keep_ && logits.buffer >= 0 && written == logits.buffer);
  }
  require(!has_keep_ || !is_early, "`logits` must be written after Keep");
}

void KernelProgram::check(const Rows& rows, int sequences) const {
  for (int i = 0; i < rows.count; ++i) {
    require(rows.tokens[i] >= 0 && rows.tokens[i] < entries_,
            "`tokens` must be 0 to " + std::to_string(entries_ - 1) + ", got " +
                std::to_string(rows.tokens[i]));
    require(rows.positions[i] >= 0 && (positions_ < 0 || rows.positions[i] < positions_),
            "`positions` must be 0 to " + std::to_string(positions_ - 1) + ", got " +
                std::to_string(rows.positions[i]));
    require(rows.sequences[i] >= 0 && rows.sequences[i] < sequences,
            "`sequences` must be 0 to " + std::to_string(sequences - 1) + ", got " +
                std::to_string(rows.sequences[i]));
    require(rows.slots[i] >= 0 && rows.slots[i] / kBlockSlots < rows.table_width,
            "`slots` must be 0 to " + std::to_string(rows.table_width * kBlockSlots - 1) +
                ", got " + std::to_string(rows.slots[i]));
  }
  for (int i = 0; i < rows.kept_count; ++i) {
    require(has_keep_ || rows.kept[i] == i,
            "kept: this program chooses no rows, so all must be kept, in their order");
    require(rows.kept[i] >= 0 && rows.kept[i] < rows.count,
            "`kept` must be 0 to " + std::to_string(rows.count - 1) + ", got " +
                std::to_string(rows.kept[i]));
  }
  // All blocks up to a row's own are readable.
  std::vector<int> used(sequences, 0);
  for (int i = 0; i < rows.count; ++i) {
    require(!rows.is_decode || used[rows.sequences[i]] == 0,
            "`sequences` must be distinct in a decode step");
    used[rows.sequences[i]] = std::max(used[rows.sequences[i]], rows.slots[i] / kBlockSlots + 1);
  }
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const std::int32_t* table =
        rows.block_tables + static_cast<std::size_t>(sequence) * rows.table_width;
    for (int i = 0; i < used[sequence]; ++i) {
      require(table[i] >= 0 && table[i] < static_cast<std::int64_t>(blocks_->size()),
              "`block_tables` must contain blocks below " + std::to_string(blocks_->size()) +
                  ", got " + std::to_string(table[i]));
    }
  }
}

void bind_kernel_program(py::module_& m) {
  py::class_<KernelProgram, std::shared_ptr<KernelProgram>>(m, "KernelProgram", py::module_local())
      .def(py::init<const py::list&, std::vector<int>, const py::list&, const py::object&,
                    const py::dict&, const std::string&, const std::optional<std::string>&, int,
                    std::int64_t>(),
           py::arg("instructions"), py::arg("widths"), py::arg("layers"), py::arg("logits"),
           py::arg("weights"), py::arg("cache"), py::arg("kernel_set"),
           py::arg("chosen_blocks") = 0, py::arg("after") = 0)
      .def("step", &KernelProgram::step, py::arg("tokens"), py::arg("positions"),
           py::arg("sequences"), py::arg("slots"), py::arg("block_tables"), py::arg("kept"),
           py::arg("workers"), py::arg("times"), py::arg("is_decode") = false)
      .def("reserve", &KernelProgram::reserve)
      .def("copy_block", &KernelProgram::copy_block)
      .def("read_blocks", &KernelProgram::read_blocks)
      .def("write_blocks", &KernelProgram::write_blocks)
      .def_property_readonly("block_bytes", &KernelProgram::block_bytes)
      .def_property_readonly("stages", &KernelProgram::stages);
  m.def("kernel_sets", &kernel_sets);
  m.def("usable_processors", &usable_processors);
  m.def("worker_threads", &worker_threads);
}

}  // namespace npu::ops::python
