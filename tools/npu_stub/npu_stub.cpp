// A recording stub of OpenVINO's C interface: device "NPU", computed by the CPU plugin in float32,
// under the rules of the NPU plugin and of its driver in docs/reference/npu-driver-rules.md, with
// the plugin's messages. It replaces libopenvino_c.so for npu-runtime's driver, which loads it by
// NPU_OPENVINO_LIBRARY; tools/npu_stub/run.py builds it. Other functions come from the real
// library, which it links. If NPU_STUB_COMPILER names the socket of verdicts.py, Intel's compiler
// judges each program.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <openvino/c/openvino.h>

struct ov_remote_context {};  // the NPU's; only its address is used

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::string_view kFullName = "Recording stub of an NPU 4000, computed by the CPU";
constexpr std::string_view kDriverVersion = "1000000";
ov_remote_context context;
std::atomic<bool> reads_raw{false};  // whether blobs are imported as the compiler wrote them

// ------------------------------------------------------------------ the real library, and errors

thread_local std::string last_error;  // empty: the real library's

template <typename Function>
Function real(const char* name) {
  static void* const library = dlopen(REAL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(dlsym(library, name));
}

#define REAL(name) real<decltype(&::name)>(#name)

// ------------------------------------------------------------------------------ what is recorded

std::recursive_mutex mutex;  // of everything below; not held in calls of the real library that work
std::map<std::string, long> counts;

void count(const std::string& what, long amount = 1) {
  const std::lock_guard lock(mutex);
  counts[what] += amount;
}

ov_status_e refuse(ov_status_e status, std::string text) {
  count("refused");
  last_error = std::move(text);
  return status;
}

// ------------------------------------------------- memory of the driver's context (userptr)

struct Import {
  std::uintptr_t begin;
  std::size_t size;
};

std::map<std::uintptr_t, std::weak_ptr<Import>> imports;

// As the driver looks: at the import that begins last before the address, and at no other.
std::shared_ptr<Import> find_import(std::uintptr_t address) {
  auto found = imports.upper_bound(address);
  while (found != imports.begin()) {
    --found;
    if (auto alive = found->second.lock())
      return address < alive->begin + alive->size ? alive : nullptr;
    found = imports.erase(found);
  }
  return nullptr;
}

// The plugin's import of memory of the process; null with its reason where it would copy.
std::shared_ptr<Import> import_memory(std::uintptr_t address, std::size_t size,
                                      std::string& reason) {
  if (auto known = find_import(address)) {
    if (address + size <= known->begin + known->size) return known;
    reason = "Tensor memory range is out of bounds of the allocated host memory";
    return nullptr;
  }
  if (address % kPage != 0 || size % kPage != 0 || size == 0) {
    reason =
        "Importing standard allocation is not supported if memory is not aligned to standard page "
        "size";
    return nullptr;
  }
  if (find_import(address + size) != nullptr) {
    reason = "Can not import a memory which is part of an existing allocation";
    return nullptr;
  }
  auto made = std::make_shared<Import>(Import{address, size});
  imports[address] = made;
  count("imports");
  return made;
}

std::map<const ov_tensor_t*, std::shared_ptr<Import>> remote_tensors;

// ------------------------------------------------------------------------------ programs, requests

struct Port {
  ov_element_type_e type = DYNAMIC;
  std::vector<std::int64_t> dims;
};

struct Model {
  std::array<std::vector<Port>, 2> ports;  // inputs, outputs
};

// A user's tensor on a port. The plugin holds the import until the end of a run.
struct Use {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  std::shared_ptr<Import> import;
  bool is_set = false;
  bool is_copied = false;
};

struct Request {
  std::shared_ptr<const Model> model;
  std::array<std::map<std::size_t, Use>, 2> uses;
};

std::map<const ov_compiled_model_t*, std::shared_ptr<const Model>> models;
std::map<const ov_infer_request_t*, Request> requests;

std::string text_of(const std::vector<std::int64_t>& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i)
    text += (i == 0 ? "" : ",") + std::to_string(dims[i]);
  return text + "]";
}

bool is_npu(const char* device) {
  return std::string_view(device).starts_with("NPU");
}

char* new_text(std::string_view text) {
  char* copy = new char[text.size() + 1];  // ov_free gives it back by delete[]
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

// Without those of NPUW, which have no effect on programs that the compiler gets whole.
constexpr std::string_view kProperties[] = {"CACHE_DIR",
                                            "CACHE_MODE",
                                            "COMPILATION_NUM_THREADS",
                                            "DEVICE_ID",
                                            "ENABLE_CPU_PINNING",
                                            "EXECUTION_MODE_HINT",
                                            "INFERENCE_PRECISION_HINT",
                                            "LOG_LEVEL",
                                            "MODEL_PRIORITY",
                                            "NUM_STREAMS",
                                            "PERFORMANCE_HINT",
                                            "PERFORMANCE_HINT_NUM_REQUESTS",
                                            "PERF_COUNT",
                                            "WEIGHTS_PATH",
                                            "WORKLOAD_TYPE"};

bool is_property(std::string_view key) {
  if (key.starts_with("NPU_") || key.starts_with("NPUW_")) return true;
  for (const std::string_view known : kProperties) {
    if (key == known) return true;
  }
  return false;
}

std::string not_found(std::string_view key) {
  return "[ NOT_FOUND ] Option '" + std::string(key) +
         "' is not supported for current configuration";
}

// Replaces the NPU's properties for the CPU plugin: float32, one stream.
ov_status_e translate(std::size_t size, const ov_property_t* given,
                      std::vector<ov_property_t>& passed) {
  for (std::size_t i = 0; i < size; ++i) {
    const std::string_view key = given[i].key;
    const std::string_view value = static_cast<const char*>(given[i].value);
    if (!is_property(key)) return refuse(NOT_FOUND, not_found(key));
    if (key == "MODEL_PRIORITY" && value != "LOW" && value != "MEDIUM" && value != "HIGH")
      return refuse(GENERAL_ERROR, "Incorrect queue priority.");
    if (key == "CACHE_DIR" || key == "CACHE_MODE" || key == "PERF_COUNT")
      passed.push_back(given[i]);
  }
  for (const auto& [key, value] : {std::pair{"INFERENCE_PRECISION_HINT", "f32"},
                                   {"PERFORMANCE_HINT", "LATENCY"},
                                   {"NUM_STREAMS", "1"},
                                   {"DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"},
                                   {"KV_CACHE_PRECISION", "f32"}})
    passed.push_back({key, value});
  return OK;
}

// The CPU plugin's generator of kernels fails on some graphs; that is no defect of an NPU's.
template <typename Compile>
ov_status_e compile_on_cpu(std::vector<ov_property_t>& passed, Compile compile) {
  const ov_status_e status = compile();
  const char* message = status == OK ? "" : REAL(ov_get_last_err_msg)();
  if (message == nullptr || std::strstr(message, "snippets") == nullptr) return status;
  passed.push_back({"SNIPPETS_MODE", "DISABLE"});
  return compile();
}

// One compiled model has one shape. The words are the compiler's, which asks for a bound of each
// size.
ov_status_e check_static(const ov_model_t* model) {
  if (!REAL(ov_model_is_dynamic)(model)) return OK;
  return refuse(GENERAL_ERROR,
                "Upper bounds were not specified, got the default value - '9223372036854775807'");
}

// ------------------------------------------------------------------------- the compiler's verdicts

const char* compiler_address() {
  static const char* const address = std::getenv("NPU_STUB_COMPILER");
  return address;
}

// An IR in memory, of which the compiler gets files; its weights live as long as the model.
struct Source {
  std::string graph;
  const char* weights = nullptr;
  std::size_t weights_bytes = 0;
};

std::map<const ov_model_t*, Source> sources;

// Sends a line to the compiler and returns its reply; without one, the reason as a refusal.
std::string request_verdict(const std::string& line) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, compiler_address(), sizeof address.sun_path - 1);
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string reply;
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      write(connection, line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
    char part[4096];
    for (ssize_t size = 0; (size = read(connection, part, sizeof part)) > 0;)
      reply.append(part, static_cast<std::size_t>(size));
  }
  close(connection);
  if (!reply.ends_with('\n')) return "refused\tthe server of verdicts did not reply";
  reply.pop_back();
  return reply;
}

ov_status_e ask_compiler(std::string graph, const std::string& weights) {
  constexpr std::string_view kSelf = "/proc/self/";  // a folder that this process has open
  if (graph.starts_with(kSelf))
    graph.replace(0, kSelf.size(), "/proc/" + std::to_string(getpid()) + '/');
  const char* test = std::getenv("PYTEST_CURRENT_TEST");
  const std::string asked = test == nullptr ? "" : test;
  const std::string reply = request_verdict(graph + '\t' + weights + '\t' + asked + '\n');
  count("judged");
  if (reply == "accepted") return OK;
  return refuse(GENERAL_ERROR, reply.substr(reply.find('\t') + 1));
}

ov_status_e ask_compiler(const ov_model_t* model) {
  if (compiler_address() == nullptr) return OK;
  Source source;
  {
    const std::lock_guard lock(mutex);
    source = sources.at(model);
  }
  std::string folder = (std::filesystem::temp_directory_path() / "npu-stub-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return refuse(GENERAL_ERROR, "mkdtemp failed");
  const std::string graph = folder + "/model.xml", weights = folder + "/model.bin";
  std::ofstream(graph, std::ios::binary) << source.graph;
  std::ofstream(weights, std::ios::binary)
      .write(source.weights, static_cast<std::streamsize>(source.weights_bytes));
  const auto status = ask_compiler(graph, weights);
  std::filesystem::remove_all(folder);
  return status;
}

ov_status_e read_ports(const ov_compiled_model_t* compiled, Model& model) {
  for (const int side : {0, 1}) {
    std::size_t size = 0;
    auto status = side == 0 ? REAL(ov_compiled_model_inputs_size)(compiled, &size)
                            : REAL(ov_compiled_model_outputs_size)(compiled, &size);
    for (std::size_t i = 0; status == OK && i < size; ++i) {
      ov_output_const_port_t* port = nullptr;
      status = side == 0 ? REAL(ov_compiled_model_input_by_index)(compiled, i, &port)
                         : REAL(ov_compiled_model_output_by_index)(compiled, i, &port);
      if (status != OK) break;
      Port read;
      ov_shape_t shape{};
      REAL(ov_port_get_element_type)(port, &read.type);
      status = REAL(ov_const_port_get_shape)(port, &shape);
      if (status == OK) {
        read.dims.assign(shape.dims, shape.dims + shape.rank);
        REAL(ov_shape_free)(&shape);
      }
      REAL(ov_output_const_port_free)(port);
      model.ports[side].push_back(std::move(read));
    }
    if (status != OK) return status;
  }
  return OK;
}

// Counts a model that was "compiled" or "imported".
ov_status_e note(const char* what, ov_status_e status, ov_compiled_model_t** compiled) {
  if (status != OK) return status;
  Model model;
  if (const auto read = read_ports(*compiled, model); read != OK) return read;
  count(what);
  const std::lock_guard lock(mutex);
  models[*compiled] = std::make_shared<const Model>(std::move(model));
  return OK;
}

ov_status_e check_tensor(const Port& port, int side, const ov_tensor_t* tensor, Use& use) {
  ov_element_type_e type = DYNAMIC;
  ov_shape_t shape{};
  void* data = nullptr;
  REAL(ov_tensor_get_element_type)(tensor, &type);
  REAL(ov_tensor_get_shape)(tensor, &shape);
  const std::vector<std::int64_t> dims(shape.dims, shape.dims + shape.rank);
  REAL(ov_shape_free)(&shape);
  REAL(ov_tensor_get_byte_size)(tensor, &use.size);
  if (use.size != 0) REAL(ov_tensor_data)(tensor, &data);
  use.address = reinterpret_cast<std::uintptr_t>(data);
  const auto is_byte = [](ov_element_type_e one) { return one == BOOLEAN || one == U8; };
  if (type != port.type && !(is_byte(type) && is_byte(port.type))) {
    return refuse(GENERAL_ERROR,
                  "Failed to set tensor. The tensor element type is not corresponding with output "
                  "element type (" +
                      std::to_string(type) + " != " + std::to_string(port.type));
  }
  if (dims != port.dims) {
    const std::string kind = side == 0 ? "input" : "output";
    return refuse(GENERAL_ERROR, "Failed to set tensor. The " + kind +
                                     " tensor size is not equal to the model " + kind +
                                     " type: got " + text_of(dims) + " expecting " +
                                     text_of(port.dims) + ".");
  }
  return OK;
}

// Binds the user's memory: imported if possible, else copied in each run.
ov_status_e set_tensor(ov_infer_request_t* handle, int side, std::size_t index,
                       const ov_tensor_t* tensor) {
  const std::lock_guard lock(mutex);
  const auto found = requests.find(handle);
  if (found == requests.end()) return OK;  // a request of another device
  Request& request = found->second;
  if (index >= request.model->ports[side].size())
    return refuse(OUT_OF_BOUNDS, "Port is out of bounds");
  Use use;
  if (const auto status = check_tensor(request.model->ports[side][index], side, tensor, use);
      status != OK)
    return status;
  std::string reason;
  use.import = use.size == 0 ? nullptr : import_memory(use.address, use.size, reason);
  use.is_set = true;
  use.is_copied = use.import == nullptr;
  request.uses[side][index] = std::move(use);  // only now the former tensor's import goes
  return OK;
}

// Before a run, released memory is imported again; if that fails, the run fails.
ov_status_e prepare(Request& request) {
  for (auto& side : request.uses) {
    for (auto& [index, use] : side) {
      if (use.is_copied) {
        if (use.size == 0) continue;
        count("copies");
        count("copied_bytes", static_cast<long>(use.size));
        continue;
      }
      if (use.import != nullptr) continue;
      std::string reason;
      use.import = import_memory(use.address, use.size, reason);
      if (use.import == nullptr) return refuse(GENERAL_ERROR, reason);
    }
  }
  count("runs");
  return OK;
}

void let_go(Request& request) {
  for (auto& side : request.uses) {
    for (auto& [index, use] : side)
      use.import.reset();
  }
}

// The counts of this process, as JSON; one line of NPU_STUB_RECORD at its end.
std::string record_text() {
  const std::lock_guard lock(mutex);
  long alive = 0;
  for (const auto& [begin, import] : imports)
    alive += import.expired() ? 0 : 1;
  std::string text = "{\"imports_alive\": " + std::to_string(alive);
  for (const auto& [what, number] : counts)
    text += ", \"" + what + "\": " + std::to_string(number);
  return text + "}";
}

struct RecordAtExit {
  ~RecordAtExit() {
    const char* path = std::getenv("NPU_STUB_RECORD");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
    if (file == nullptr) return;
    std::fprintf(file, "%s\n", record_text().c_str());
    std::fclose(file);
  }
} record_at_exit;

}  // namespace

extern "C" {

// For tests: the counts so far. The text lives until the thread's next call.
OPENVINO_C_API(const char*) npu_stub_record() {
  thread_local std::string text;
  text = record_text();
  return text.c_str();
}

const char* ov_get_last_err_msg() {
  return last_error.empty() ? REAL(ov_get_last_err_msg)() : last_error.c_str();
}

ov_status_e ov_core_get_available_devices(const ov_core_t* core, ov_available_devices_t* devices) {
  ov_available_devices_t found{};
  if (const auto status = REAL(ov_core_get_available_devices)(core, &found); status != OK)
    return status;
  devices->size = found.size + 1;
  devices->devices = new char*[devices->size];
  for (std::size_t i = 0; i < found.size; ++i)
    devices->devices[i] = new_text(found.devices[i]);
  devices->devices[found.size] = new_text("NPU");
  REAL(ov_available_devices_free)(&found);
  return OK;
}

void ov_available_devices_free(ov_available_devices_t* devices) {
  for (std::size_t i = 0; i < devices->size; ++i)
    delete[] devices->devices[i];
  delete[] devices->devices;
  *devices = {};
}

ov_status_e ov_core_get_property(const ov_core_t* core, const char* device, const char* key,
                                 char** value) {
  last_error.clear();
  if (!is_npu(device)) return REAL(ov_core_get_property)(core, device, key, value);
  const std::string_view name = key;
  const std::string_view known = name == "FULL_DEVICE_NAME"            ? kFullName
                                 : name == "NPU_DRIVER_VERSION"        ? kDriverVersion
                                 : name == "DEVICE_ARCHITECTURE"       ? "4000"
                                 : name == "OPTIMIZATION_CAPABILITIES" ? "FP16 INT8 EXPORT_IMPORT"
                                                                       : "";
  if (known.empty())
    return refuse(GENERAL_ERROR, "Unsupported configuration key: " + std::string(name));
  *value = new_text(known);
  return OK;
}

ov_status_e ov_core_get_default_context(const ov_core_t* core, const char* device,
                                        ov_remote_context_t** made) {
  last_error.clear();
  if (!is_npu(device)) return REAL(ov_core_get_default_context)(core, device, made);
  *made = &context;
  return OK;
}

ov_status_e ov_remote_context_create_tensor(const ov_remote_context_t*,
                                            const ov_element_type_e type, const ov_shape_t shape,
                                            const std::size_t argument_count, ov_tensor_t** tensor,
                                            ...) {
  last_error.clear();
  std::string kind;
  void* address = nullptr;
  std::va_list arguments;
  va_start(arguments, tensor);
  for (std::size_t i = 0; i + 1 < argument_count; i += 2) {
    const std::string_view key = va_arg(arguments, char*);
    if (key == "MEM_HANDLE") {
      address = va_arg(arguments, void*);
    } else if (const char* value = va_arg(arguments, char*); key == "MEM_TYPE") {
      kind = value;
    }
  }
  va_end(arguments);
  const std::lock_guard lock(mutex);
  if (kind != "CPU_VA") return refuse(GENERAL_ERROR, "Unsupported memory type: " + kind);
  if (address == nullptr)
    return refuse(GENERAL_ERROR, "No parameter MEM_HANDLE found in parameters map");
  if (const auto status = REAL(ov_tensor_create_from_host_ptr)(type, shape, address, tensor);
      status != OK)
    return status;
  std::size_t size = 0;
  REAL(ov_tensor_get_byte_size)(*tensor, &size);
  std::string reason;
  auto made = import_memory(reinterpret_cast<std::uintptr_t>(address), size, reason);
  if (made == nullptr) {
    REAL(ov_tensor_free)(*tensor);
    return refuse(GENERAL_ERROR, reason);
  }
  remote_tensors[*tensor] = std::move(made);
  return OK;
}

void ov_tensor_free(ov_tensor_t* tensor) {
  {
    const std::lock_guard lock(mutex);
    remote_tensors.erase(tensor);
  }
  REAL(ov_tensor_free)(tensor);
}

ov_status_e ov_core_read_model_from_memory_buffer(const ov_core_t* core, const char* graph,
                                                  const std::size_t size,
                                                  const ov_tensor_t* weights, ov_model_t** model) {
  const auto status =
      REAL(ov_core_read_model_from_memory_buffer)(core, graph, size, weights, model);
  if (status != OK || compiler_address() == nullptr) return status;
  Source source{std::string(graph, size)};
  if (weights != nullptr) {
    void* data = nullptr;
    REAL(ov_tensor_get_byte_size)(weights, &source.weights_bytes);
    REAL(ov_tensor_data)(weights, &data);
    source.weights = static_cast<const char*>(data);
  }
  const std::lock_guard lock(mutex);
  sources[*model] = std::move(source);
  return OK;
}

void ov_model_free(ov_model_t* model) {
  {
    const std::lock_guard lock(mutex);
    sources.erase(model);
  }
  REAL(ov_model_free)(model);
}

ov_status_e ov_core_compile_model_props(const ov_core_t* core, const ov_model_t* model,
                                        const char* device, const std::size_t property_count,
                                        const ov_property_t* properties,
                                        ov_compiled_model_t** compiled) {
  last_error.clear();
  if (!is_npu(device)) {
    return REAL(ov_core_compile_model_props)(core, model, device, property_count, properties,
                                             compiled);
  }
  std::vector<ov_property_t> passed;
  if (const auto status = translate(property_count, properties, passed); status != OK)
    return status;
  if (const auto status = check_static(model); status != OK) return status;
  if (const auto status = ask_compiler(model); status != OK) return status;
  const auto compile = [&] {
    return REAL(ov_core_compile_model_props)(core, model, "CPU", passed.size(), passed.data(),
                                             compiled);
  };
  return note("compiled", compile_on_cpu(passed, compile), compiled);
}

ov_status_e ov_core_compile_model_from_file_props(const ov_core_t* core, const char* path,
                                                  const char* device,
                                                  const std::size_t property_count,
                                                  const ov_property_t* properties,
                                                  ov_compiled_model_t** compiled) {
  last_error.clear();
  if (!is_npu(device)) {
    return REAL(ov_core_compile_model_from_file_props)(core, path, device, property_count,
                                                       properties, compiled);
  }
  std::vector<ov_property_t> passed;
  if (const auto status = translate(property_count, properties, passed); status != OK)
    return status;
  ov_model_t* model = nullptr;
  if (const auto status = REAL(ov_core_read_model)(core, path, "", &model); status != OK)
    return status;
  const auto is_static = check_static(model);
  REAL(ov_model_free)(model);
  if (is_static != OK) return is_static;
  if (compiler_address() != nullptr) {
    if (const auto status = ask_compiler(path, ""); status != OK) return status;
  }
  const auto compile = [&] {
    return REAL(ov_core_compile_model_from_file_props)(core, path, "CPU", passed.size(),
                                                       passed.data(), compiled);
  };
  return note("compiled", compile_on_cpu(passed, compile), compiled);
}

ov_status_e ov_core_set_property(const ov_core_t* core, const char* device, ...) {
  last_error.clear();
  std::va_list arguments;
  va_start(arguments, device);
  const char* key = va_arg(arguments, char*);
  const char* value = va_arg(arguments, char*);
  va_end(arguments);
  if (!is_npu(device)) return REAL(ov_core_set_property)(core, device, key, value);
  if (std::string_view(key) != "NPU_IMPORT_RAW_BLOB") return refuse(NOT_FOUND, not_found(key));
  reads_raw = std::string_view(value) == "YES";
  return OK;
}

// A blob of this NPU is one that the CPU plugin exported. The plugin reads one of the compiler's
// only if it is set that the trailer is absent.
ov_status_e ov_core_import_model(const ov_core_t* core, const char* content,
                                 const std::size_t content_size, const char* device,
                                 ov_compiled_model_t** compiled) {
  last_error.clear();
  if (!is_npu(device))
    return REAL(ov_core_import_model)(core, content, content_size, device, compiled);
  if (!reads_raw) return refuse(GENERAL_ERROR, "The blob is missing the NPU metadata!");
  const auto precise = REAL(ov_core_set_property)(core, "CPU", "INFERENCE_PRECISION_HINT", "f32");
  if (precise != OK) return precise;
  return note("imported", REAL(ov_core_import_model)(core, content, content_size, "CPU", compiled),
              compiled);
}

ov_status_e ov_compiled_model_get_property(const ov_compiled_model_t* compiled, const char* key,
                                           char** value) {
  last_error.clear();
  bool is_npus = false;
  {
    const std::lock_guard lock(mutex);
    is_npus = models.contains(compiled);
  }
  const std::string_view name = key;
  if (is_npus && name == "INFERENCE_PRECISION_HINT") {
    *value = new_text("f16");
    return OK;
  }
  const bool is_fact = name == "LOADED_FROM_CACHE" || name == "NETWORK_NAME";
  if (is_npus && !is_fact && !is_property(name)) return refuse(NOT_FOUND, not_found(name));
  return REAL(ov_compiled_model_get_property)(compiled, key, value);
}

void ov_compiled_model_free(ov_compiled_model_t* compiled) {
  {
    const std::lock_guard lock(mutex);
    models.erase(compiled);
  }
  REAL(ov_compiled_model_free)(compiled);
}

ov_status_e ov_compiled_model_create_infer_request(const ov_compiled_model_t* compiled,
                                                   ov_infer_request_t** request) {
  last_error.clear();
  const auto status = REAL(ov_compiled_model_create_infer_request)(compiled, request);
  const std::lock_guard lock(mutex);
  if (const auto found = models.find(compiled); status == OK && found != models.end())
    requests[*request].model = found->second;
  return status;
}

void ov_infer_request_free(ov_infer_request_t* request) {
  {
    const std::lock_guard lock(mutex);
    requests.erase(request);
  }
  REAL(ov_infer_request_free)(request);
}

ov_status_e ov_infer_request_set_input_tensor_by_index(ov_infer_request_t* request,
                                                       const std::size_t index,
                                                       const ov_tensor_t* tensor) {
  last_error.clear();
  if (const auto status = set_tensor(request, 0, index, tensor); status != OK) return status;
  return REAL(ov_infer_request_set_input_tensor_by_index)(request, index, tensor);
}

ov_status_e ov_infer_request_set_output_tensor_by_index(ov_infer_request_t* request,
                                                        const std::size_t index,
                                                        const ov_tensor_t* tensor) {
  last_error.clear();
  if (const auto status = set_tensor(request, 1, index, tensor); status != OK) return status;
  return REAL(ov_infer_request_set_output_tensor_by_index)(request, index, tensor);
}

ov_status_e ov_infer_request_infer(ov_infer_request_t* handle) {
  last_error.clear();
  Request* request = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = requests.find(handle); found != requests.end()) {
      request = &found->second;
      if (const auto status = prepare(*request); status != OK) return status;
    }
  }
  const auto status = REAL(ov_infer_request_infer)(handle);
  const std::lock_guard lock(mutex);
  if (request != nullptr && status == OK) let_go(*request);
  return status;
}

}  // extern "C"
