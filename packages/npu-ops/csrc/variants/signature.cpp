// Encoding of arguments as words. Each begins with its kind and, if variable, its length, so that
// encodings are unique.
#include "variants/signature.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <c10/util/hash.h>

#include "npu/tensor.h"

namespace npu::ops::variants {
namespace {

constexpr std::int64_t kMostAxes = 15;

enum Kind : std::int64_t { kNone, kTensor, kInt, kDouble, kBool, kInts, kDoubles, kBools, kString };

using Words = c10::SmallVectorImpl<std::int64_t>;

bool can_enter(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return is_npu(tensor) && impl.key_set().has(c10::DispatchKey::Dense) && !tensor.is_conj() &&
         !tensor.is_neg() && impl.numel() != 0 && impl.dim() <= kMostAxes &&
         impl.unsafe_storage() && impl.unsafe_storage().data() != nullptr;
}

void add_tensor(Words& words, const at::Tensor& tensor) {
  words.push_back(kTensor);
  words.push_back(static_cast<std::int64_t>(tensor.scalar_type()) * 16 + tensor.dim());
  for (const std::int64_t size : tensor.sizes())
    words.push_back(size);
  std::int64_t packed = 0;
  for (const std::int64_t axis : axis_order(tensor))
    packed = packed * 16 + axis + 1;
  words.push_back(packed);
}

template <typename Values>
void add_list(Words& words, Kind kind, const Values& values) {
  words.push_back(kind);
  words.push_back(static_cast<std::int64_t>(values.size()));
  for (const auto value : values) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(values[0])>, double>) {
      words.push_back(std::bit_cast<std::int64_t>(static_cast<double>(value)));
    } else {
      words.push_back(static_cast<std::int64_t>(value));
    }
  }
}

// False for a kind of argument that programs do not support.
bool add_plain(Words& words, const c10::IValue& value) {
  if (value.isNone()) {
    words.push_back(kNone);
  } else if (value.isInt()) {
    words.insert(words.end(), {kInt, value.toInt()});
  } else if (value.isDouble()) {
    words.insert(words.end(), {kDouble, std::bit_cast<std::int64_t>(value.toDouble())});
  } else if (value.isBool()) {
    words.insert(words.end(), {kBool, value.toBool()});
  } else if (value.isIntList()) {
    add_list(words, kInts, value.toIntVector());
  } else if (value.isDoubleList()) {
    add_list(words, kDoubles, value.toDoubleVector());
  } else if (value.isBoolList()) {
    add_list(words, kBools, value.toBoolList().vec());
  } else if (value.isString()) {
    add_list(words, kString, value.toStringView());
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::vector<std::int64_t> axis_order(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return {};
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<std::int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t left, std::int64_t right) {
    return strides[left] > strides[right];
  });
  std::int64_t expected = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (sizes[*axis] != 1 && strides[*axis] != expected) return {};
    expected *= sizes[*axis];
  }
  return order;
}

std::optional<Signature> signature_of(at::ArrayRef<c10::IValue> arguments, bool needs_grad) {
  Signature signature;
  std::int64_t device = -1;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor()) {
      if (!add_plain(signature.words, value)) return std::nullopt;
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {  // an optional one that was omitted
      signature.words.push_back(kNone);
      continue;
    }
    if (!can_enter(tensor)) return std::nullopt;
    const std::int64_t index = tensor.device().index();
    if (device >= 0 && device != index) return std::nullopt;
    device = index;
    add_tensor(signature.words, tensor);
  }
  if (device < 0) return std::nullopt;
  signature.words.push_back(device * 2 + static_cast<std::int64_t>(needs_grad));
  std::size_t hash = signature.words.size();
  for (const std::int64_t word : signature.words)
    hash = c10::hash_combine(hash, static_cast<std::size_t>(word));
  signature.hash = hash;
  return signature;
}

}  // namespace npu::ops::variants
