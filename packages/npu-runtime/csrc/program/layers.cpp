// Reading the driver's records of layers.
#include "program/layers.h"

#include "program/status.h"

namespace npu::program {

std::vector<LayerRecord> read_layers(npu_request* request) {
  const npu_driver& driver = driver::table();
  std::size_t count = 0;
  const npu_status status = driver.request_layers(request, nullptr, 0, &count);
  if (status == NPU_ERROR_UNSUPPORTED) return {};
  check(status, ErrorKind::kDriver, "driver-call", "npu: reading layer times");
  std::vector<npu_layer_record> raw(count);
  check(driver.request_layers(request, raw.data(), raw.size(), &count), ErrorKind::kDriver,
        "driver-call", "npu: reading layer times");
  std::vector<LayerRecord> layers;
  for (const npu_layer_record& record : raw) {
    layers.push_back({record.name, record.type, record.implementation, record.duration_us});
  }
  return layers;
}

}  // namespace npu::program
