// Histograms of integers, which accelerators support and the CPU's kernel does not; transformers'
// mixture-of-experts layers count tokens per expert by device.

#include <ATen/ops/histc.h>

#include "alias.h"
#include "kernels.h"

namespace npu::ops {

// Counts in float64, where every int32 is exact, and returns the dtype of the input as CUDA does.
at::Tensor histc(const at::Tensor& self, std::int64_t bins, const at::Scalar& min,
                 const at::Scalar& max) {
  const c10::DeviceIndex device = self.device().index();
  at::Tensor counts;
  {
    const at::Tensor host = alias_of(self, Access::kRead);
    const HostScope scope(device);
    counts = c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)
                 ? at::histc(host.to(at::kDouble), bins, min, max).to(self.scalar_type())
                 : at::histc(host, bins, min, max);
  }
  adopt_tensor(counts, device);
  return counts;
}

}  // namespace npu::ops
