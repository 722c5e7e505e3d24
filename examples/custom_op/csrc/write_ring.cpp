// The op add_custom::write_ring, which writes its cache in place: schema, checks and kernel.
//
// Fake and converter are in src/add_custom.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "npu/capture.h"
#include "npu/host_access.h"
#include "npu/process.h"

namespace {

void check(const at::Tensor& cache, const at::Tensor& rows, const at::Tensor& start) {
  TORCH_CHECK_VALUE(cache.dim() == 2 && cache.is_contiguous() && cache.size(0) > 0,
                    "write_ring: cache must be (slots, width) with a slot, and contiguous, got ",
                    cache.sizes(), ". Pass such a tensor, not a view of it.");
  TORCH_CHECK_VALUE(rows.dim() == 2 && rows.size(1) == cache.size(1) &&
                        rows.size(0) <= cache.size(0) && rows.scalar_type() == cache.scalar_type(),
                    "write_ring: rows must be (count, width) of the cache's dtype, ",
                    cache.scalar_type(), cache.sizes(), ", and fit into it, got ",
                    rows.scalar_type(), rows.sizes(), ". Pass fewer rows, or convert them.");
  TORCH_CHECK_VALUE(start.dim() == 0 && start.scalar_type() == at::kLong,
                    "write_ring: start must be one int64 number, got ", start.scalar_type(),
                    start.sizes(), ". Pass torch.tensor(position).");
  TORCH_CHECK_VALUE(rows.device() == cache.device() && start.device() == cache.device(),
                    "write_ring: rows and start must be on the device of cache, ", cache.device(),
                    ", got ", rows.device(), " and ", start.device(), ". Move them there.");
  TORCH_CHECK_VALUE(!rows.is_alias_of(cache),
                    "write_ring: rows must not share memory with cache, got two views of one "
                    "tensor. Pass rows.clone().");
  if (!cache.is_privateuseone()) return;
  npu::check_process();
  TORCH_CHECK(!npu::is_capturing(),
              "write_ring: its kernel runs on the host and cannot be captured. Call it outside "
              "torch.npu.graph, or compile the step with torch.compile(backend=\"npu\").");
}

// --8<-- [start:ring_call]
void write_ring(at::Tensor& cache, const at::Tensor& rows, const at::Tensor& start) {
  check(cache, rows, start);
  const at::Tensor source = rows.contiguous();
  const npu::HostAccess writing(cache.storage().data());
  const npu::HostAccess reading_rows(source.storage().data());
  const npu::HostAccess reading_start(start.storage().data());
  const std::int64_t slots = cache.size(0);
  const std::size_t row_bytes = cache.size(1) * cache.element_size();
  const std::int64_t first = *start.const_data_ptr<std::int64_t>() % slots + slots;
  auto* to = static_cast<std::byte*>(cache.mutable_data_ptr());
  const auto* from = static_cast<const std::byte*>(source.const_data_ptr());
  for (std::int64_t row = 0; row < source.size(0); ++row) {
    std::memcpy(to + (first + row) % slots * row_bytes, from + row * row_bytes, row_bytes);
  }
}
// --8<-- [end:ring_call]

}  // namespace

// --8<-- [start:ring_registration]
TORCH_LIBRARY_FRAGMENT(add_custom, library) {
  library.def("write_ring(Tensor(a!) cache, Tensor rows, Tensor start) -> ()");
}

TORCH_LIBRARY_IMPL(add_custom, CPU, library) {
  library.impl("write_ring", write_ring);
}

TORCH_LIBRARY_IMPL(add_custom, PrivateUse1, library) {  // npu
  library.impl("write_ring", write_ring);
}
// --8<-- [end:ring_registration]
