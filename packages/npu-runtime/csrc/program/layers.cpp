// Reading the driver's records of layers.
#include "program/layers.h"

#include <algorithm>
#include <string>
#include <unordered_map>

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

std::unordered_map<std::string, LayerShapes> read_layer_shapes(const npu_program* program) {
  // A layer is a line of some 100 bytes; a decoder of 80 blocks has 3,000 layers.
  std::string text(1U << 20U, '\0');
  const npu_status status =
      driver::table().program_property(program, "LAYER_SHAPES", text.data(), text.size());
  if (status != NPU_OK) return {};                      // times of layers are useful without
  text.resize(std::min(text.find('\0'), text.size()));  // another driver may omit the zero
  std::unordered_map<std::string, LayerShapes> found;
  // A truncated line has no end, and is left out.
  std::size_t start = 0;
  for (std::size_t end = 0; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::string line = text.substr(start, end - start);
    const std::size_t inputs = line.find('\t');
    const std::size_t outputs = line.find('\t', inputs + 1);
    if (inputs == std::string::npos || outputs == std::string::npos) continue;
    found[line.substr(0, inputs)] = {line.substr(inputs + 1, outputs - inputs - 1),
                                     line.substr(outputs + 1)};
  }
  return found;
}

}  // namespace npu::program
