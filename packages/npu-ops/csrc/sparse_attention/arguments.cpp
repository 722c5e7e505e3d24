#include "sparse_attention/arguments.h"

#include "fused/check.h"

namespace npu::ops::sparse_attention {
namespace {

using fused::dtype_of;
using fused::shape_of;

void check_layouts(const Addressing& call) {
  TORCH_CHECK_VALUE(call.query_layout == "BSND" || call.query_layout == "TND", "npu.", call.op,
                    ": `layout_query` must be \"BSND\" or \"TND\", got \"", call.query_layout,
                    "\". Pass one of them. [op-layout]");
  TORCH_CHECK_VALUE(call.key_layout == call.query_layout || call.key_layout == "PA_BSND", "npu.",
                    call.op, ": `", call.key_layout_name,
                    "` must equal `layout_query` or be \"PA_BSND\", got \"", call.key_layout,
                    "\" with layout_query \"", call.query_layout,
                    "\". Pass one of them. [op-layout]");
}

void check_element(const Addressing& call, const char* name, const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16 || (call.is_indexer && dtype == at::kHalf),
      "npu.", call.op, ": `", name, "` must be float32",
      call.is_indexer ? ", float16 or bfloat16, or int8 with scales" : " or bfloat16", ", got ",
      dtype_of(tensor), ". Convert it with .to(). [op-dtype]");
}

void check_integers(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong, "npu.",
                    op, ": `", name, "` must be int32 or int64, got ", dtype_of(tensor),
                    ". Convert it with .to(). [op-dtype]");
}

void check_lengths_shape(const Addressing& call, const char* name, const OptionalTensor& lengths,
                         bool is_needed, const c10::SymInt& batch) {
  TORCH_CHECK_VALUE(
      lengths || !is_needed, "npu.", call.op, ": `", name,
      "` must be given for layouts \"TND\" and \"PA_BSND\", got None. Pass one number "
      "per sequence. [op-lengths]");
  if (!lengths) return;
  check_integers(call.op, name, *lengths);
  TORCH_CHECK_VALUE(lengths->dim() == 1 && lengths->sym_size(0) == batch, "npu.", call.op, ": `",
                    name, "` must have one number per sequence, got ", shape_of(*lengths), ", ",
                    batch, " sequences. Pass a tensor of shape (", batch, ",). [op-lengths]");
}

void check_table_shape(const Addressing& call, const c10::SymInt& batch) {
  const bool is_paged = call.key_layout == "PA_BSND";
  TORCH_CHECK_VALUE(call.block_table.has_value() == is_paged, "npu.", call.op,
                    ": `block_table` must be given for layout \"PA_BSND\" only, got ",
                    call.block_table ? "one" : "None", " with ", call.key_layout_name, " \"",
                    call.key_layout, "\". Pass both or neither. [op-block-table]");
  if (!is_paged) return;
  check_integers(call.op, "block_table", *call.block_table);
  TORCH_CHECK_VALUE(call.block_table->dim() == 2 && call.block_table->sym_size(0) == batch, "npu.",
                    call.op, ": `block_table` must be (sequences, pages), got ",
                    shape_of(*call.block_table), ", ", batch,
                    " sequences. Pass one row per sequence. [op-block-table]");
  TORCH_CHECK_VALUE(call.key.sym_size(1) >= 1, "npu.", call.op,
                    ": a page must have at least one position, got ", call.key_name, " ",
                    shape_of(call.key),
                    " (pages, positions, 1, width). Allocate other pages. [op-block-table]");
}

std::vector<std::int64_t> values_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.const_data_ptr<std::int64_t>(), wide.const_data_ptr<std::int64_t>() + wide.numel()};
}

void refuse_length(const Addressing& call, const char* name, std::size_t batch, std::int64_t got,
                   std::int64_t least, std::int64_t most) {
  TORCH_CHECK_VALUE(got >= least && got <= most, "npu.", call.op, ": `", name, "` must be between ",
                    least, " and ", most, " for sequence ", batch, ", got ", got,
                    ". Pass lengths for \"BSND\" and \"PA_BSND\", their running sums for "
                    "\"TND\". [op-lengths]");
}

// Fills `first` and `count` of each sequence from lengths or from their cumulative sums.
template <typename Set>
void read_lengths(const Addressing& call, const char* name, const OptionalTensor& lengths,
                  bool are_sums, std::int64_t most, std::vector<Sequence>& sequences,
                  const Set& set) {
  const std::vector<std::int64_t> given =
      lengths ? values_of(*lengths) : std::vector<std::int64_t>(sequences.size(), most);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    refuse_length(call, name, i, given[i], are_sums ? before : 0, most);
    set(sequences[i], are_sums ? before : 0, given[i] - (are_sums ? before : 0));
    before = given[i];
  }
}

void read_pages(const Addressing& call, Sequences& all) {
  const std::int64_t pages = call.key.size(0);
  all.pages = values_of(*call.block_table);
  all.pages_of_sequence = call.block_table->size(1);
  all.page_size = call.key.size(1);
  for (const Sequence& sequence : all.list) {
    const std::int64_t needed = (sequence.keys + all.page_size - 1) / all.page_size;
    TORCH_CHECK_VALUE(needed <= all.pages_of_sequence, "npu.", call.op,
                      ": `block_table` must have a page for each position, got ",
                      all.pages_of_sequence, " pages of ", all.page_size, " for sequence ",
                      sequence.batch, " of ", sequence.keys, " keys. Pass ", needed,
                      " columns or more. [op-block-table]");
    for (std::int64_t i = 0; i < needed; ++i) {
      const std::int64_t page = all.pages[sequence.batch * all.pages_of_sequence + i];
      TORCH_CHECK_VALUE(page >= 0 && page < pages, "npu.", call.op,
                        ": `block_table` must contain pages of `", call.key_name, "`, 0 to ",
                        pages - 1, ", got ", page, " for page ", i, " of sequence ", sequence.batch,
                        ". Allocate the page, or pass a smaller length. [op-block-table]");
    }
  }
}

}  // namespace

KeyRows::KeyRows(const at::Tensor& tensor, Layout layout, const Sequences& all,
                 const Sequence& sequence)
    : base_(static_cast<const char*>(tensor.const_data_ptr())),
      outer_(layout == Layout::kRagged ? 0 : tensor.stride(0) * tensor.element_size()),
      inner_(tensor.stride(layout == Layout::kRagged ? 0 : 1) * tensor.element_size()),
      page_size_(all.page_size),
      pages_(layout == Layout::kPaged ? all.pages.data() + sequence.batch * all.pages_of_sequence
                                      : nullptr) {
  if (layout != Layout::kPaged) base_ += sequence.batch * outer_ + sequence.first_key * inner_;
}

Layout key_layout_of(const Addressing& call) {
  if (call.key_layout == "PA_BSND") return Layout::kPaged;
  return is_ragged(call) ? Layout::kRagged : Layout::kDense;
}

bool is_ragged(const Addressing& call) {
  return call.query_layout == "TND";
}

void check_addressing(const Addressing& call) {
  check_layouts(call);
  if (!call.is_indexer || call.query.scalar_type() != at::kChar)
    check_element(call, "query", call.query);
  fused::check_same_dtype(call.op, call.key_name, call.key, "query", call.query);
  fused::check_rank(call.op, "query", call.query, is_ragged(call) ? 3 : 4,
                    is_ragged(call) ? "(tokens, heads, width)" : "(batch, length, heads, width)");
  const std::int64_t rank = call.key_layout == "TND" ? 3 : 4;
  fused::check_rank(call.op, call.key_name, call.key, rank,
                    rank == 3 ? "(tokens, 1, width)" : "(batch or pages, positions, 1, width)");
  TORCH_CHECK_VALUE(call.key.sym_size(-2) == 1 && call.key.sym_size(-1) == call.query.sym_size(-1),
                    "npu.", call.op, ": `", call.key_name,
                    "` must have one head of the width of `query`, got ", call.key_name, " ",
                    shape_of(call.key), ", query ", shape_of(call.query),
                    ". Add the head with .unsqueeze(-2). [op-shape]");
  TORCH_CHECK_VALUE(call.query.sym_size(-2) >= 1 && call.query.sym_size(-1) >= 1, "npu.", call.op,
                    ": `query` must have heads and width, got ", shape_of(call.query),
                    ". Pass at least one of each. [op-shape]");
  TORCH_CHECK_VALUE(call.sparse_mode == 0 || call.sparse_mode == 3, "npu.", call.op,
                    ": `sparse_mode` must be 0 (all keys) or 3 (causal, the last query sees all), "
                    "got ",
                    call.sparse_mode, ". Pass one of them. [op-value]");
  const bool has_batch = !is_ragged(call);
  TORCH_CHECK_VALUE(has_batch || call.query_lengths, "npu.", call.op,
                    ": `actual_seq_lengths_query` must be given for layout \"TND\", got None. Pass "
                    "the running sums of the lengths. [op-lengths]");
  const c10::SymInt batch =
      has_batch
          ? call.query.sym_size(0)
          : (call.query_lengths->dim() == 1 ? call.query_lengths->sym_size(0) : c10::SymInt(-1));
  TORCH_CHECK_VALUE(call.key_layout != "BSND" || call.key.sym_size(0) == batch, "npu.", call.op,
                    ": `", call.key_name, "` must have the batch size of `query`, got ",
                    call.key_name, " ", shape_of(call.key), ", query ", shape_of(call.query),
                    ". Expand one of them. [op-shape]");
  check_lengths_shape(call, "actual_seq_lengths_query", call.query_lengths, false, batch);
  check_lengths_shape(call, call.key_length_name, call.key_lengths, call.key_layout != "BSND",
                      batch);
  check_table_shape(call, batch);
}

void check_beside(const char* op, const char* name, const at::Tensor& tensor, const char* like_name,
                  const at::Tensor& like) {
  fused::check_same_dtype(op, name, tensor, like_name, like);
  bool is_equal = tensor.dim() == like.dim();
  for (std::int64_t i = 0; is_equal && i + 1 < like.dim(); ++i)
    is_equal = tensor.sym_size(i) == like.sym_size(i);
  TORCH_CHECK_VALUE(is_equal && tensor.sym_size(-1) >= 1, "npu.", op, ": `", name,
                    "` must have the sizes of `", like_name, "` in all axes except the last, got ",
                    name, " ", shape_of(tensor), ", ", like_name, " ", shape_of(like),
                    ". Pass slices of one cache. [op-shape]");
}

Sequences sequences_of(const Addressing& call) {
  const bool ragged = is_ragged(call);
  const Layout layout = key_layout_of(call);
  const std::int64_t length = ragged ? call.query.size(0) : call.query.size(1);
  Sequences all;
  all.list.resize(ragged ? call.query_lengths->size(0) : call.query.size(0));
  all.rows = ragged ? length : length * static_cast<std::int64_t>(all.list.size());
  read_lengths(call, "actual_seq_lengths_query", call.query_lengths, ragged, length, all.list,
               [](Sequence& sequence, std::int64_t first, std::int64_t count) {
                 sequence.first_row = first;
                 sequence.queries = count;
               });
  // The table of a paged cache bounds the length, which read_pages reports separately.
  const std::int64_t most = layout == Layout::kPaged    ? kMostPositions
                            : layout == Layout::kRagged ? call.key.size(0)
                                                        : call.key.size(1);
  read_lengths(call, call.key_length_name, call.key_lengths, layout == Layout::kRagged, most,
               all.list, [](Sequence& sequence, std::int64_t first, std::int64_t count) {
                 sequence.first_key = first;
                 sequence.keys = count;
               });
  for (std::size_t i = 0; i < all.list.size(); ++i) {
    all.list[i].batch = static_cast<std::int64_t>(i);
    if (!ragged) all.list[i].first_row = static_cast<std::int64_t>(i) * length;
  }
  if (layout == Layout::kPaged) read_pages(call, all);
  return all;
}

at::Tensor with_dense_rows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 || tensor.size(-1) == 1 ? tensor : tensor.contiguous();
}

Element element_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kHalf) return Element::kFloat16;
  return tensor.scalar_type() == at::kFloat ? Element::kFloat32 : Element::kBfloat16;
}

}  // namespace npu::ops::sparse_attention
