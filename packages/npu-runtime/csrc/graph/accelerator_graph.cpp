// torch.accelerator.Graph on npu: the captured graph with torch's interface for any device.
#include <ATen/core/GraphImplInterface.h>

#include <fstream>

#include "graph/graph.h"
#include "npu/error.h"

namespace npu {
namespace {

class AcceleratorGraph final : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs&) {}

  // A capture affects only its thread, whatever the mode.
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    graph_.capture_begin(pool);
  }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override {}  // a capture can be replayed without instantiation
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  at::MempoolId_t pool() const override { return graph_.pool(); }
  void enable_debug_mode() override {}  // the data of debug_dump is always available
  void debug_dump(const std::string& path) override {
    std::ofstream file(path);
    if (!(file << graph_.describe())) {
      throw Error(ErrorKind::kInput, "capture-dump",
                  "npu.Graph.debug_dump: `path` must be writable, got \"" + path +
                      "\". Pass a path in a folder that exists.");
    }
  }

 private:
  Graph graph_;
};

}  // namespace
}  // namespace npu

namespace at {
namespace {

// torch looks the device up by its upper-case name
REGISTER_GRAPH_IMPL(NPU, npu::AcceleratorGraph)

}  // namespace
}  // namespace at
