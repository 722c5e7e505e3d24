// Kernel programs for Python: what npu_ops.kernel_programs.execution stands on. Everything that a
// step or a program is given is checked here, as kernels look nowhere but where they are told.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "hot/operands.h"
#include "kernel_programs/program.h"
#include "kernel_programs/thread_pool.h"
#include "python/kernel_weights.h"
#include "python/module.h"

namespace npu::ops::python {
namespace {

using namespace kernel_programs;

constexpr int kBlocksOfSlab = 16;

[[noreturn]] void refuse(const std::string& what) {
  throw py::value_error(what);
}

void require(bool is_so, const std::string& what) {
  if (!is_so) refuse(what);
}

// What torch allocates; for want of memory it throws an error like any other.
template <typename Make>
at::Tensor allocated(const Make& make) {
  try {
    return make();
  } catch (const c10::Error&) {
    throw std::bad_alloc();
  }
}

at::Tensor bytes(std::size_t count) {
  return allocated([&] { return at::empty({static_cast<std::int64_t>(count)}, at::kByte); });
}

template <typename T>
const T* data_of(const at::Tensor& tensor, const std::string& name, std::int64_t count) {
  require_tensor(tensor, name, c10::CppTypeToScalarType<T>::value, count);
  return tensor.const_data_ptr<T>();
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

// Reads the instructions, as npu_ops.kernel_programs.program writes them, and checks each.
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
            where_ + ": columns must lie in their buffer");
    require(width < 0 || found.width == width, where_ + ": columns must be " +
                                                   std::to_string(width) + " wide; got " +
                                                   std::to_string(found.width));
    return found;
  }

  std::vector<at::Tensor> held;         // the memory that the instructions point to
  std::int64_t positions = -1;          // how many the shortest table has; -1 for no table
  std::vector<int> arguments, results;  // widths of the rows that are loaded and stored

 private:
  py::object weight(const py::object& name) {
    if (!weights_.contains(name)) {
      refuse(where_ + ": weight " + py::cast<std::string>(py::str(name)) + " is missing");
    }
    return weights_[name];
  }

  // The place of rows that a call takes or gives; they come in the order of their numbers.
  int place(const py::object& number, const py::object& columns, std::vector<int>& rows) {
    require(py::cast<int>(number) == static_cast<int>(rows.size()),
            where_ + ": numbers must rise from 0, one by one");
    rows.push_back(view(columns).width);
    return static_cast<int>(rows.size()) - 1;
  }

  const float* vector(const py::object& name, std::int64_t count) {
    if (name.is_none()) return nullptr;
    held.push_back(py::cast<at::Tensor>(weight(name)));
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
    const auto own = py::cast<at::Tensor>(weight(one["own"]));
    const std::int64_t count = own.numel() / size;
    bound_positions(count);
    held.push_back(py::cast<at::Tensor>(weight(one["partner"])));
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
            "Experts: there must be as many as are chosen");
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

class KernelProgram {
 public:
  KernelProgram(const py::list& instructions, std::vector<int> widths, const py::list& layers,
                const py::object& logits, const py::dict& weights, const std::string& cache,
                const std::optional<std::string>& set, int chosen_blocks, std::int64_t after) {
    require(chosen_blocks == 0 || (chosen_blocks >= kFewestBlocks && chosen_blocks < (1 << 24)),
            "chosen_blocks: must be at least " + std::to_string(kFewestBlocks) + ", or 0 for all");
    const auto kind = chosen<CacheKind>(cache, {{"float32", CacheKind::float32},
                                                {"bfloat16", CacheKind::bfloat16},
                                                {"u8", CacheKind::u8}});
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
    program_ = std::make_unique<Program>(std::move(list), widths, std::move(caches), result,
                                         *linear, *row, BlockSelection{chosen_blocks, after});
  }

  at::Tensor step(const at::Tensor& tokens, const at::Tensor& positions,
                  const at::Tensor& sequences, const at::Tensor& slots, const at::Tensor& tables,
                  const at::Tensor& kept, int workers, const std::optional<at::Tensor>& times,
                  bool is_decode) {
    Rows rows;
    rows.is_decode = is_decode;
    rows.count = static_cast<int>(tokens.numel());
    rows.kept_count = static_cast<int>(kept.numel());
    require(logits_.buffer >= 0, "step: this program has no logits");
    require(tokens.numel() > 0 && tokens.numel() < (1 << 24),
            "tokens: must be some; got none or too many");
    require(tables.dim() == 2, "block_tables: must be (sequences, blocks)");
    rows.tokens = data_of<std::int64_t>(tokens, "tokens", rows.count);
    rows.positions = data_of<std::int64_t>(positions, "positions", rows.count);
    rows.sequences = data_of<std::int32_t>(sequences, "sequences", rows.count);
    rows.slots = data_of<std::int32_t>(slots, "slots", rows.count);
    rows.block_tables = data_of<std::int32_t>(tables, "block_tables", tables.numel());
    rows.table_width = static_cast<int>(tables.size(1));
    rows.kept = data_of<std::int64_t>(kept, "kept", rows.kept_count);
    check(rows, static_cast<int>(tables.size(0)));
    require(has_keep_ || rows.kept_count == rows.count,
            "kept: this program chooses no rows, so all must be kept, in their order");
    StepTimes durations;
    if (times) {
      const auto stages = static_cast<std::int64_t>(program_->stages().size());
      require(times->is_contiguous() && times->scalar_type() == at::kLong &&
                  times->numel() == (1 + std::max(workers, 1)) * stages,
              "times: must be int64, of (1 + workers, stages)");
      durations.stages = times->mutable_data_ptr<std::int64_t>();
      durations.workers = durations.stages + stages;
    }
    at::Tensor out =
        allocated([&] { return at::empty({rows.kept_count, logits_width_}, at::kFloat); });
    {
      rows.blocks = blocks_;
      const py::gil_scoped_release unlocked;
      program_->run(rows, out.mutable_data_ptr<float>(), workers, durations);
    }
    return allocated([&] { return out.narrow(1, logits_.start, logits_.width).contiguous(); });
  }

  // Runs rows that are no tokens. Each argument has `rows` rows, each result will.
  void run_rows(int rows, const float* const* arguments, float* const* results, int workers,
                const StepTimes& durations) {
    Rows given;
    given.count = given.kept_count = rows;
    given.arguments = arguments;
    given.results = results;
    program_->run(given, nullptr, workers, durations);
  }

  bool has_tokens() const { return logits_.buffer >= 0; }
  const std::vector<int>& arguments() const { return arguments_; }
  const std::vector<int>& results() const { return results_; }

  void reserve(std::int64_t count) {
    require(count >= 0 && count < (std::int64_t{1} << 31), "blocks: must be 0 to 2^31 - 1");
    if (static_cast<std::int64_t>(blocks_->size()) >= count) return;
    std::vector<unsigned char*> blocks = *blocks_;  // a step may be reading the old ones
    std::vector<at::Tensor> slabs = slabs_;
    while (static_cast<std::int64_t>(blocks.size()) < count) {
      at::Tensor slab = bytes(kBlocksOfSlab * block_bytes_);
      auto* memory = slab.mutable_data_ptr<unsigned char>();
      slabs.push_back(std::move(slab));
      for (int i = 0; i < kBlocksOfSlab; ++i)
        blocks.push_back(memory + i * block_bytes_);
    }
    blocks_ = std::make_shared<const std::vector<unsigned char*>>(std::move(blocks));
    slabs_ = std::move(slabs);
  }

  void copy_block(std::int64_t source, std::int64_t target) {
    std::memcpy(block(target), block(source), block_bytes_);
  }

  at::Tensor read_blocks(const std::vector<std::int64_t>& ids) {
    at::Tensor out =
        bytes(ids.size() * block_bytes_)
            .view({static_cast<std::int64_t>(ids.size()), static_cast<std::int64_t>(block_bytes_)});
    auto* to = out.mutable_data_ptr<unsigned char>();
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::memcpy(to + i * block_bytes_, block(ids[i]), block_bytes_);
    return out;
  }

  void write_blocks(const std::vector<std::int64_t>& ids, const at::Tensor& content) {
    const auto* from = data_of<std::uint8_t>(content, "content",
                                             static_cast<std::int64_t>(ids.size() * block_bytes_));
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::memcpy(block(ids[i]), from + i * block_bytes_, block_bytes_);
  }

  std::size_t block_bytes() const { return block_bytes_; }
  std::vector<std::pair<int, int>> stages() const { return program_->stages(); }

 private:
  unsigned char* block(std::int64_t id) {
    require(
        id >= 0 && id < static_cast<std::int64_t>(blocks_->size()),
        "block: must be below " + std::to_string(blocks_->size()) + "; got " + std::to_string(id));
    return (*blocks_)[id];
  }

  // Logits have as many rows as are kept: what writes them must not have more.
  void check_logits(const std::vector<Instruction>& list, const View& logits) {
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
    require(!has_keep_ || !is_early, "logits: must not be written before rows are kept");
  }

  void check(const Rows& rows, int sequences) const {
    for (int i = 0; i < rows.count; ++i) {
      require(rows.tokens[i] >= 0 && rows.tokens[i] < entries_,
              "tokens: must be 0 to " + std::to_string(entries_ - 1) + "; got " +
                  std::to_string(rows.tokens[i]));
      require(rows.positions[i] >= 0 && (positions_ < 0 || rows.positions[i] < positions_),
              "positions: must be 0 to " + std::to_string(positions_ - 1) + "; got " +
                  std::to_string(rows.positions[i]));
      require(rows.sequences[i] >= 0 && rows.sequences[i] < sequences,
              "sequences: must be 0 to " + std::to_string(sequences - 1) + "; got " +
                  std::to_string(rows.sequences[i]));
      require(rows.slots[i] >= 0 && rows.slots[i] / kBlockSlots < rows.table_width,
              "slots: must be 0 to " + std::to_string(rows.table_width * kBlockSlots - 1) +
                  "; got " + std::to_string(rows.slots[i]));
    }
    for (int i = 0; i < rows.kept_count; ++i) {
      require(has_keep_ || rows.kept[i] == i,
              "kept: this program chooses no rows, so all must be kept, in their order");
      require(rows.kept[i] >= 0 && rows.kept[i] < rows.count,
              "kept: must be 0 to " + std::to_string(rows.count - 1) + "; got " +
                  std::to_string(rows.kept[i]));
    }
    // Every block up to a row's own may be read.
    std::vector<int> used(sequences, 0);
    for (int i = 0; i < rows.count; ++i) {
      require(!rows.is_decode || used[rows.sequences[i]] == 0,
              "sequences: must have one row each in a step that decodes");
      used[rows.sequences[i]] = std::max(used[rows.sequences[i]], rows.slots[i] / kBlockSlots + 1);
    }
    for (int sequence = 0; sequence < sequences; ++sequence) {
      const std::int32_t* table =
          rows.block_tables + static_cast<std::size_t>(sequence) * rows.table_width;
      for (int i = 0; i < used[sequence]; ++i) {
        require(table[i] >= 0 && table[i] < static_cast<std::int64_t>(blocks_->size()),
                "block_tables: must name blocks below " + std::to_string(blocks_->size()) +
                    "; got " + std::to_string(table[i]));
      }
    }
  }

  std::vector<at::Tensor> held_, slabs_;
  std::shared_ptr<const std::vector<unsigned char*>> blocks_ =
      std::make_shared<const std::vector<unsigned char*>>();
  std::vector<int> arguments_, results_;
  std::size_t block_bytes_ = 0;
  std::int64_t positions_ = -1, entries_ = 0;
  View logits_;
  int logits_width_ = 0;
  bool has_keep_ = false;
  std::unique_ptr<Program> program_;  // the first to go: it waits for who still reads the others
};

// A program whose rows are those of tensors, for tensors of fixed shapes: what a compiled graph
// calls.
class TensorCall {
 public:
  TensorCall(std::shared_ptr<KernelProgram> program, std::int64_t rows,
             std::vector<std::size_t> positions, std::vector<std::vector<std::int64_t>> arguments,
             std::vector<std::vector<std::int64_t>> results, const at::Device& device,
             bool is_alone)
      : program_(std::move(program)),
        rows_(rows),
        positions_(std::move(positions)),
        arguments_(std::move(arguments)),
        results_(std::move(results)),
        device_(device),
        is_alone_(is_alone) {
    require(!program_->has_tokens(), "program: must load and store its rows");
    require(rows > 0 && rows < (1 << 24), "rows: must be some; got none or too many");
    require(positions_.size() == arguments_.size(), "positions: must be one for each argument");
    check(arguments_, program_->arguments(), "arguments");
    check(results_, program_->results(), "results");
  }

  // None while a graph is captured, as host code would not be part of it.
  py::object run(const py::tuple& inputs, const std::optional<at::Tensor>& times) const {
    if (C10_UNLIKELY(is_capturing())) return py::none();
    check_process();
    c10::SmallVector<at::Tensor, 4> held;  // arguments, then results
    c10::SmallVector<const float*, 4> from;
    c10::SmallVector<float*, 4> to;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      held.push_back(argument(inputs, i));
    }
    py::list out(results_.size());
    for (std::size_t i = 0; i < results_.size(); ++i) {
      held.push_back(allocated([&] { return empty(results_[i]); }));
      out[i] = held.back();
    }
    StepTimes durations;
    if (times) durations.stages = times->mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (i < positions_.size()) {
        from.push_back(static_cast<const float*>(held[i].const_data_ptr()));
      } else {
        to.push_back(static_cast<float*>(held[i].mutable_data_ptr()));
      }
    }
    {
      const py::gil_scoped_release unlocked;
      hot::Windows windows;
      if (C10_UNLIKELY(!is_host_access_free())) {
        for (const at::Tensor& tensor : held)
          windows.open(tensor);
      }
      const int workers = is_alone_ ? kAlone : std::min(usable_processors(), at::get_num_threads());
      program_->run_rows(static_cast<int>(rows_), from.data(), to.data(), workers, durations);
    }
    return out;
  }

  // None also where somebody listens, or `is_current(inputs)` is false: a compiled graph then takes
  // its usual way. No Python code runs on this one.
  py::object run_current(const py::handle& is_current, const py::tuple& inputs) const {
    if (C10_UNLIKELY(observe::is_enabled())) return py::none();
    if (!is_current.is_none() && is_current(inputs).ptr() != Py_True) return py::none();
    return run(inputs, std::nullopt);
  }

 private:
  at::Tensor empty(const std::vector<std::int64_t>& shape) const {
    if (device_.is_cpu()) return at::detail::empty_cpu(shape, at::kFloat);
    return at::empty(shape, at::TensorOptions(at::kFloat).device(device_));
  }

  at::Tensor argument(const py::tuple& inputs, std::size_t i) const {
    const auto name = [&] { return "input " + std::to_string(positions_[i]); };
    require(positions_[i] < inputs.size(), name() + ": is missing");
    const py::object item = inputs[positions_[i]];
    require(THPVariable_Check(item.ptr()), name() + ": must be a tensor");
    const at::Tensor& given = THPVariable_Unpack(item.ptr());
    require(
        given.layout() == at::kStrided && given.scalar_type() == at::kFloat &&
            given.sizes() == at::IntArrayRef(arguments_[i]) &&
            (given.is_cpu() || given.device().type() == at::kPrivateUse1),
        name() + ": must be float32 of the shape that the graph was compiled for, on npu or cpu");
    if (given.is_contiguous() && !given.is_neg()) return given;
    const at::NoGradGuard no_grad;
    return given.resolve_neg().contiguous();
  }

  void check(const std::vector<std::vector<std::int64_t>>& shapes, const std::vector<int>& widths,
             const std::string& name) const {
    require(shapes.size() == widths.size(),
            name + ": must be " + std::to_string(widths.size()) + ", as the program has them");
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      require(c10::multiply_integers(shapes[i]) == rows_ * widths[i],
              name + ": must have the program's rows; got another size at " + std::to_string(i));
    }
  }

  std::shared_ptr<KernelProgram> program_;
  const std::int64_t rows_;
  const std::vector<std::size_t> positions_;
  const std::vector<std::vector<std::int64_t>> arguments_, results_;
  const at::Device device_;
  const bool is_alone_;
};

}  // namespace

void bind_kernel_program(py::module_& m) {
  py::class_<KernelProgram, std::shared_ptr<KernelProgram>>(m, "KernelProgram")
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
  py::class_<TensorCall>(m, "TensorCall")
      .def(py::init([](std::shared_ptr<KernelProgram> program, std::int64_t rows,
                       std::vector<std::size_t> positions,
                       std::vector<std::vector<std::int64_t>> arguments,
                       std::vector<std::vector<std::int64_t>> results, const std::string& device,
                       bool is_alone) {
             return TensorCall(std::move(program), rows, std::move(positions), std::move(arguments),
                               std::move(results), at::Device(device), is_alone);
           }),
           py::arg("program"), py::arg("rows"), py::arg("positions"), py::arg("arguments"),
           py::arg("results"), py::arg("device"), py::arg("is_alone"))
      .def("run", &TensorCall::run, py::arg("inputs"), py::arg("times") = py::none())
      .def("run_current", &TensorCall::run_current, py::arg("is_current"), py::arg("inputs"));
  m.def("usable_processors", &usable_processors);
  m.def("worker_threads", &worker_threads);
}

}  // namespace npu::ops::python
