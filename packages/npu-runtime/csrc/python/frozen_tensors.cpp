// FrozenTensors: detects changes of tensors by version counter, address and bytes. Native, because
// compiled models check hundreds of weights at each call. The caller handles changes. A graph being
// captured receives the tensors here.
#include "python/frozen_tensors.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include "graph/graph.h"
#include "memory/watched_memory.h"
#include "npu/error.h"
#include "npu/host_access.h"

namespace npu::python {

namespace {

struct State {
  std::uint32_t version;
  const void* data;
  std::int64_t offset;

  explicit State(const at::Tensor& tensor)
      : version(tensor.unsafeGetTensorImpl()->version_counter().current_version()),
        data(tensor.unsafeGetTensorImpl()->unsafe_storage()
                 ? tensor.storage().data()
                 : static_cast<const void*>(tensor.unsafeGetTensorImpl())),
        offset(tensor.storage_offset()) {}

  bool operator==(const State& other) const {
    return version == other.version && data == other.data && offset == other.offset;
  }
};

// From the first to the last byte of a tensor, including gaps.
memory::Bytes bytes_of(const at::Tensor& tensor) {
  const bool is_readable = tensor.is_cpu() || tensor.is_privateuseone();
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  if (!is_readable || !storage || storage.data() == nullptr || tensor.numel() == 0) return {};
  std::int64_t elements = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    elements += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto* begin = static_cast<const std::byte*>(storage.data()) +
                      tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize());
  return {begin, static_cast<std::size_t>(elements) * tensor.itemsize()};
}

class FrozenTensors {
 public:
  FrozenTensors(std::vector<std::size_t> positions, const std::vector<at::Tensor>& tensors,
                std::vector<std::string> names, bool is_watching = true)
      : positions_(std::move(positions)), names_(std::move(names)) {
    if (positions_.size() != tensors.size()) {
      throw Error(ErrorKind::kInput, "frozen-positions",
                  "npu_runtime.FrozenTensors: `positions` must have one element per tensor, got " +
                      std::to_string(positions_.size()) + " positions and " +
                      std::to_string(tensors.size()) + " tensors. Pass lists of equal length.");
    }
    if (!names_.empty() && names_.size() != positions_.size()) {
      throw Error(
          ErrorKind::kInput, "frozen-positions",
          "npu_runtime.FrozenTensors: `names` must be empty or have one name per tensor, got " +
              std::to_string(names_.size()) + " names and " + std::to_string(tensors.size()) +
              " tensors. Pass lists of equal length.");
    }
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.is_inference()) {
        throw Error(ErrorKind::kInput, "frozen-tensor",
                    "npu_runtime.FrozenTensors: tensors must have a version counter, got one from "
                    "inference mode, or an undefined one. Clone it outside of inference mode.");
      }
      states_.emplace_back(tensor);
      // The storage is held, so that its address is not reused; `.data = other` leaves the tensor.
      if (tensor.unsafeGetTensorImpl()->unsafe_storage()) held_.push_back(tensor.storage());
    }
    for (const c10::Storage& storage : held_)
      addresses_.push_back(storage.data());
    std::vector<memory::Bytes> spans;
    for (const at::Tensor& tensor : tensors)
      spans.push_back(bytes_of(tensor));
    const Windows windows(held_);
    memory_ = std::make_unique<memory::WatchedMemory>(std::move(spans), is_watching);
  }

  static std::unique_ptr<FrozenTensors> unwatched(std::vector<std::size_t> positions,
                                                  const std::vector<at::Tensor>& tensors,
                                                  std::vector<std::string> names) {
    return std::make_unique<FrozenTensors>(std::move(positions), tensors, std::move(names), false);
  }

  const std::vector<std::size_t>& positions() const { return positions_; }

  bool is_current(const py::sequence& inputs) {
    Graph* graph = Graph::capturing();
    if (graph != nullptr && graph->follows_weights()) return positions_.empty();
    const Py_ssize_t size = PySequence_Size(inputs.ptr());
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (!holds(inputs, size, i)) return false;
    }
    if (!is_memory_unchanged()) return false;
    if (graph != nullptr) tell(*graph, inputs);
    return true;
  }

  std::vector<std::size_t> changed(const py::sequence& inputs) {
    const Py_ssize_t size = PySequence_Size(inputs.ptr());
    is_memory_unchanged();
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (!holds(inputs, size, i) || memory_->is_changed(i)) found.push_back(positions_[i]);
    }
    return found;
  }

 private:
  // Waits for the device's pending writes.
  struct Windows {
    explicit Windows(const std::vector<c10::Storage>& storages) {
      if (is_host_access_free()) return;
      for (const c10::Storage& storage : storages)
        open.push_back(std::make_unique<HostAccess>(storage.data()));
    }
    std::vector<std::unique_ptr<HostAccess>> open;
  };

  bool is_memory_unchanged() {
    for (std::size_t i = 0; i < held_.size(); ++i)
      if (held_[i].data() != addresses_[i]) return false;  // a resize freed its bytes
    const Windows windows(held_);
    return memory_->is_unchanged();
  }

  // Precondition: they are unchanged.
  void tell(Graph& graph, const py::sequence& inputs) const {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const py::object item = inputs[positions_[i]];
      graph.depends_on(names_.empty() ? "input " + std::to_string(positions_[i]) : names_[i],
                       THPVariable_Unpack(item.ptr()));
    }
  }

  bool holds(const py::sequence& inputs, Py_ssize_t size, std::size_t index) const {
    const auto position = static_cast<Py_ssize_t>(positions_[index]);
    if (position >= size) return false;
    const py::object item =
        PyList_CheckExact(inputs.ptr())
            ? py::reinterpret_borrow<py::object>(PyList_GET_ITEM(inputs.ptr(), position))
            : py::reinterpret_steal<py::object>(PySequence_GetItem(inputs.ptr(), position));
    if (!item || !THPVariable_Check(item.ptr())) {
      PyErr_Clear();
      return false;
    }
    const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
    return tensor.defined() && !tensor.is_inference() && State(tensor) == states_[index];
  }

  std::vector<std::size_t> positions_;
  std::vector<std::string> names_;
  std::vector<State> states_;
  std::vector<c10::Storage> held_;
  std::vector<const void*> addresses_;  // of what is held
  std::unique_ptr<memory::WatchedMemory> memory_;
};

}  // namespace

void bind_frozen_tensors(py::module_& module) {
  py::class_<FrozenTensors>(module, "FrozenTensors")
      .def(py::init<std::vector<std::size_t>, const std::vector<at::Tensor>&,
                    std::vector<std::string>>(),
           py::arg("positions"), py::arg("tensors"), py::arg("names") = std::vector<std::string>())
      .def_static("unwatched", &FrozenTensors::unwatched, py::arg("positions"), py::arg("tensors"),
                  py::arg("names") = std::vector<std::string>())
      .def_property_readonly("positions", &FrozenTensors::positions)
      .def("is_current", &FrozenTensors::is_current, py::arg("inputs"))
      .def("changed", &FrozenTensors::changed, py::arg("inputs"))
      .def_static("suspect_all", &memory::WatchedMemory::suspect_all);
  module.def("reports_written_pages", &memory::reports_written_pages);
  module.def("want_written_pages", &memory::want_written_pages, py::arg("is_wanted"));
}

}  // namespace npu::python
