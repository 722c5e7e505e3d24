// Batch and weight normalization: one number of each statistic and weight per channel.

#include "checks/families.h"

namespace npu::ops::checks {
namespace {

void require_per_channel(const Given& given, std::size_t index, const char* name,
                         std::int64_t channels) {
  const at::Tensor tensor = given.tensor(index);
  if (!tensor.defined()) return;
  NPU_REQUIRE(given, tensor.numel() == channels && has_room(tensor), name,
              " must hold one element per channel of the input (", channels, "); got ",
              tensor.sizes(), ". Pass a vector of length ", channels, ".");
}

// Inputs of fewer dims have no channels; torch itself reports it.
bool has_channels(const at::Tensor& input) {
  return is_computed(input) && input.dim() >= 2;
}

void require_statistics(const Given& given, const char* rule, std::size_t mean,
                        std::size_t variance) {
  NPU_REQUIRE(given, given.tensor(mean).defined() && given.tensor(variance).defined(), rule,
              "; got None. Pass both.");
}

constexpr const char* kInferenceRule =
    "running_mean and running_var must be given when it does not train";

// input, weight, bias, running_mean, running_var
void check_batch_norm(const Given& given, bool has_statistics, bool is_training) {
  const at::Tensor input = given.tensor(0);
  if (!has_channels(input)) return;
  const std::int64_t channels = input.size(1);
  // torch itself reports that only one of the two is given.
  if (has_statistics && given.tensor(3).defined() != given.tensor(4).defined()) return;
  require_per_channel(given, 1, "weight", channels);
  require_per_channel(given, 2, "bias", channels);
  if (!has_statistics) {
    NPU_REQUIRE(given, is_training,
                "it must train where no running statistics are; got training False. Pass True.");
    return;
  }
  require_per_channel(given, 3, "running_mean", channels);
  require_per_channel(given, 4, "running_var", channels);
  if (!is_training) require_statistics(given, kInferenceRule, 3, 4);
}

// `dim` is the first or the last; torch itself refuses others.
void check_weight_norm(const Given& given, const at::Tensor& v, const at::Tensor& g,
                       std::int64_t dim) {
  const std::int64_t rank = v.dim();
  if (!is_computed(v) || rank == 0 || (dim != 0 && dim != rank - 1)) return;
  NPU_REQUIRE(given, v.size(dim) != 0, "v must have a slice along dim ", dim, "; got ", v.sizes(),
              ". Leave empty weights as they are.");
  NPU_REQUIRE(given, g.numel() == v.size(dim) && has_room(g) && has_room(v),
              "g must hold one element per slice of v along dim ", dim, " (", v.size(dim),
              ") and both must be contiguous; got v ", v.sizes(), ", g ", g.sizes(), ".",
              " Call torch._weight_norm, which prepares both.");
}

}  // namespace

void batch_norm(const Given& given) {
  check_batch_norm(given, true, given.flag(5));
}

void batch_norm_without_statistics(const Given& given) {
  check_batch_norm(given, false, given.flag(3));
}

void batch_norm_training(const Given& given) {
  check_batch_norm(given, true, true);
}

void batch_norm_inference(const Given& given) {
  check_batch_norm(given, true, false);
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train
void batch_norm_backward(const Given& given) {
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor input = given.tensor(1);
  if (!has_channels(input)) return;
  NPU_REQUIRE(given, gradient.sizes() == input.sizes(),
              "the gradient must have the shape of the input ", input.sizes(), "; got ",
              gradient.sizes(), ". Pass the gradient of the result.");
  const std::int64_t channels = input.size(1);
  NPU_REQUIRE(given, channels != 0, "the input must have a channel; got ", input.sizes(),
              ". Leave empty batches out.");
  require_per_channel(given, 2, "weight", channels);
  // Only those that are read: the others may be empty, as the forward gives them.
  if (given.flag(7)) {
    require_statistics(given, "save_mean and save_invstd must be given when it trains", 5, 6);
    require_per_channel(given, 5, "save_mean", channels);
    require_per_channel(given, 6, "save_invstd", channels);
  } else {
    require_statistics(given, kInferenceRule, 3, 4);
    require_per_channel(given, 3, "running_mean", channels);
    require_per_channel(given, 4, "running_var", channels);
  }
}

// v, g, dim
void weight_norm(const Given& given) {
  check_weight_norm(given, given.tensor(0), given.tensor(1), given.integer(2));
}

// grad_w, saved_v, saved_g, saved_norms, dim
void weight_norm_backward(const Given& given) {
  const at::Tensor gradient = given.tensor(0);
  const at::Tensor v = given.tensor(1);
  check_weight_norm(given, v, given.tensor(2), given.integer(4));
  check_weight_norm(given, v, given.tensor(3), given.integer(4));
  if (!is_computed(v)) return;
  NPU_REQUIRE(given, gradient.numel() == v.numel() && has_room(gradient),
              "grad_w must be contiguous and of the shape of saved_v ", v.sizes(), "; got ",
              gradient.sizes(), ". Call .contiguous() on the gradient of the weight.");
}

}  // namespace npu::ops::checks
