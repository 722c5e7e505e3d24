// Kernel programs for Python: a program, its weights and the blocks of its KV cache.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernel_programs/program.h"
#include "python/array.h"

namespace npu::ops::python {

// All inputs of a step or a program are checked here, because kernels do not validate.
class KernelProgram {
 public:
  KernelProgram(const py::list& instructions, std::vector<int> widths, const py::list& layers,
                const py::object& logits, const py::dict& weights, const std::string& cache,
                const std::optional<std::string>& set, int chosen_blocks, std::int64_t after);

  Array step(const Array& tokens, const Array& positions, const Array& sequences,
             const Array& slots, const Array& tables, const Array& kept, int workers,
             std::optional<Array> times, bool is_decode);
  // Runs rows of tensors. Each argument has `rows` rows, and so has each result.
  void run_rows(int rows, const float* const* arguments, float* const* results, int workers,
                const kernel_programs::StepTimes& durations);

  void reserve(std::int64_t count);
  void copy_block(std::int64_t source, std::int64_t target);
  Array read_blocks(const std::vector<std::int64_t>& ids);
  void write_blocks(const std::vector<std::int64_t>& ids, const Array& content);

  bool has_tokens() const { return logits_.buffer >= 0; }
  const std::vector<int>& arguments() const { return arguments_; }
  const std::vector<int>& results() const { return results_; }
  std::size_t block_bytes() const { return block_bytes_; }
  std::vector<std::pair<int, int>> stages() const { return program_->stages(); }

 private:
  unsigned char* block(std::int64_t id);
  void check_logits(const std::vector<kernel_programs::Instruction>& list,
                    const kernel_programs::View& logits);
  void check(const kernel_programs::Rows& rows, int sequences) const;

  std::vector<Array> held_;
  std::vector<std::shared_ptr<unsigned char>> slabs_;
  std::shared_ptr<const std::vector<unsigned char*>> blocks_ =
      std::make_shared<const std::vector<unsigned char*>>();
  std::vector<int> arguments_, results_;
  std::size_t block_bytes_ = 0;
  std::int64_t positions_ = -1, entries_ = 0;
  kernel_programs::View logits_;
  int logits_width_ = 0;
  bool has_keep_ = false;
  // Destroyed first: it waits for threads that still read the others.
  std::unique_ptr<kernel_programs::Program> program_;
};

}  // namespace npu::ops::python
