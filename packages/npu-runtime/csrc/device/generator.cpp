// The npu generator: a CPU generator under another device, so that one seed gives the same numbers
// on both.
#include "npu/generator.h"

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include "device/default_generators.h"
#include "npu/device.h"
#include "npu/error.h"
#include "npu/process.h"

namespace npu {

namespace {

class NpuGenerator final : public c10::GeneratorImpl {
 public:
  NpuGenerator(c10::DeviceIndex device_index, at::Generator cpu)
      : GeneratorImpl({c10::DeviceType::PrivateUse1, device_index},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { cpu_.set_offset(offset); }
  std::uint64_t get_offset() const override { return cpu_.get_offset(); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    cpu_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  NpuGenerator* clone_impl() const override {
    return new NpuGenerator(device_.index(), cpu_.clone());
  }

  at::Generator cpu_;
};

c10::DeviceIndex checked(c10::DeviceIndex device_index) {
  const c10::DeviceIndex resolved = device_index < 0 ? current_device() : device_index;
  check_process();
  check_device(resolved);
  return resolved;
}

// Never destroyed: static objects of other libraries use generators at exit. The vector never
// changes after creation, so that references into it remain valid.
struct Defaults {
  std::mutex mutex;
  std::optional<std::uint64_t> seed;  // seeded before the generators existed
  std::vector<at::Generator> generators;
};

Defaults& defaults() {
  static auto* instance = new Defaults;
  return *instance;
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device_index) {
  const auto index = static_cast<std::size_t>(checked(device_index));
  Defaults& state = defaults();
  const std::lock_guard lock(state.mutex);
  if (state.generators.empty()) {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      at::Generator made = make_generator(i);
      if (state.seed.has_value()) {
        made.set_current_seed(*state.seed);
      } else {
        made.seed();
      }
      state.generators.push_back(std::move(made));
    }
  }
  return state.generators.at(index);
}

void seed_default_generators(std::uint64_t seed) {
  if (is_in_bad_fork()) return;  // this generator is never used
  Defaults& state = defaults();
  const std::lock_guard lock(state.mutex);
  state.seed = seed;
  for (at::Generator& generator : state.generators) {
    const std::lock_guard own_lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

at::Generator make_generator(c10::DeviceIndex device_index) {
  return at::make_generator<NpuGenerator>(checked(device_index), at::detail::createCPUGenerator());
}

at::Generator cpu_generator_of(const at::Generator& generator) {
  const auto* ours = dynamic_cast<const NpuGenerator*>(generator.unsafeGetGeneratorImpl());
  if (ours == nullptr) {
    throw Error(ErrorKind::kInput, "generator-device",
                "npu: `generator` must be on npu, got one on " + generator.device().str() +
                    ". Create it with torch.Generator(device=\"npu\").");
  }
  return ours->cpu();
}

}  // namespace npu
