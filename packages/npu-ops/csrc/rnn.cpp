// Fused LSTM and GRU cells, which torch calls on every device except the CPU. They are plain tensor
// ops on aliases, so the whole cell passes the dispatcher once.
//
// Formulas: torch.nn.LSTMCell and torch.nn.GRUCell. The workspaces hold the inputs of backward, in
// our own order, since only the functions below read them.

#include "kernels.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "alias.h"

namespace npu::ops {
namespace {

at::Tensor read(const at::Tensor& tensor) {
  return is_npu(tensor) ? alias_of(tensor, Access::kRead) : tensor;
}

// Chunks of an alias are views of its storage, and the host may use the memory only while the alias
// lives: callers must keep it.
at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias && bias->defined() ? gates + read(*bias) : gates;
}

// The gates of a cell, concatenated in a matrix; with too few, a kernel would read out of bounds.
std::vector<at::Tensor> gates_of(const at::Tensor& matrix, std::int64_t count) {
  TORCH_CHECK(matrix.dim() == 2 && matrix.size(1) % count == 0,
              "npu: the gates of a fused cell must be a matrix (batch, ", count,
              " * hidden), got shape ", matrix.sizes(),
              ". Pass a multiple of that many columns. [cell-shape]");
  const std::int64_t width = matrix.size(1) / count;
  std::vector<at::Tensor> gates;
  for (std::int64_t gate = 0; gate < count; ++gate)
    gates.push_back(matrix.narrow(1, gate * width, width));
  return gates;
}

// The device of the cell. Gates on the CPU come with another tensor on npu.
c10::DeviceIndex cell_device(const at::Tensor& gates) {
  TORCH_CHECK(is_npu(gates),
              "Expected all tensors to be on the same device, but found the gates of a fused cell "
              "on ",
              gates.device(), ". Move them with .to(\"npu\"). [device-mix]");
  return gates.device().index();
}

at::Tensor adopted(at::Tensor fresh, c10::DeviceIndex device_index) {
  if (fresh.defined()) adopt_tensor(fresh, device_index);
  return fresh;
}

at::Tensor or_zeros(const std::optional<at::Tensor>& gradient, const at::Tensor& like) {
  return gradient && gradient->defined() ? read(*gradient) : at::zeros_like(like);
}

}  // namespace

// Gate order: input, forget, cell, output. workspace: (batch, 4 * hidden), the activated gates.
std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const c10::DeviceIndex device = cell_device(input_gates);
  at::Tensor hy, cy, workspace;
  {
    const HostScope scope(device);
    const at::Tensor gates =
        with_bias(read(input_gates), input_bias) + with_bias(read(hidden_gates), hidden_bias);
    const auto parts = gates_of(gates, 4);
    const at::Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid();
    const at::Tensor cell = parts[2].tanh(), out = parts[3].sigmoid();
    cy = (forget * read(cx)).add_(in * cell);
    hy = out * cy.tanh();
    workspace = at::cat({in, forget, cell, out}, 1);
  }
  return {adopted(hy, device), adopted(cy, device), adopted(workspace, device)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hy, const std::optional<at::Tensor>& grad_cy,
    const at::Tensor& cx, const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  const bool has_gradient = (grad_hy && grad_hy->defined()) || (grad_cy && grad_cy->defined());
  if (!has_gradient) return {};
  const c10::DeviceIndex device = cell_device(workspace);
  at::Tensor grad_gates, grad_cx, grad_bias;
  {
    const HostScope scope(device);
    const at::Tensor saved = read(workspace);
    const auto parts = gates_of(saved, 4);
    const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
    const at::Tensor host_cx = read(cx);
    const at::Tensor tanh_cy = read(cy).tanh();
    const at::Tensor from_hy = or_zeros(grad_hy, tanh_cy);
    const at::Tensor grad_cell_state =
        from_hy * out * (1 - tanh_cy * tanh_cy) + or_zeros(grad_cy, tanh_cy);
    const at::Tensor grad_in = grad_cell_state * cell * in * (1 - in);
    const at::Tensor grad_forget = grad_cell_state * host_cx * forget * (1 - forget);
    const at::Tensor grad_cell = grad_cell_state * in * (1 - cell * cell);
    const at::Tensor grad_out = from_hy * tanh_cy * out * (1 - out);
    grad_gates = at::cat({grad_in, grad_forget, grad_cell, grad_out}, 1);
    grad_cx = grad_cell_state * forget;
    if (has_bias) grad_bias = grad_gates.sum(0);
  }
  return {adopted(grad_gates, device), adopted(grad_cx, device), adopted(grad_bias, device)};
}

// Gate order: reset, update, new. workspace: (batch, 5 * hidden): reset, update, new, hx, hidden
// new gate.
std::tuple<at::Tensor, at::Tensor> fused_gru_cell(const at::Tensor& input_gates,
                                                  const at::Tensor& hidden_gates,
                                                  const at::Tensor& hx,
                                                  const std::optional<at::Tensor>& input_bias,
                                                  const std::optional<at::Tensor>& hidden_bias) {
  const c10::DeviceIndex device = cell_device(input_gates);
  at::Tensor hy, workspace;
  {
    const HostScope scope(device);
    const at::Tensor input_sum = with_bias(read(input_gates), input_bias);
    const at::Tensor hidden_sum = with_bias(read(hidden_gates), hidden_bias);
    const auto from_input = gates_of(input_sum, 3);
    const auto from_hidden = gates_of(hidden_sum, 3);
    const at::Tensor host_hx = read(hx);
    const at::Tensor reset = (from_input[0] + from_hidden[0]).sigmoid_();
    const at::Tensor update = (from_input[1] + from_hidden[1]).sigmoid_();
    const at::Tensor candidate = (from_input[2] + reset * from_hidden[2]).tanh_();
    hy = (host_hx - candidate).mul_(update).add_(candidate);
    workspace = at::cat({reset, update, candidate, host_hx, from_hidden[2]}, 1);
  }
  return {adopted(hy, device), adopted(workspace, device)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const c10::DeviceIndex device = cell_device(workspace);
  at::Tensor grad_input, grad_hidden, grad_hx, grad_input_bias, grad_hidden_bias;
  {
    const HostScope scope(device);
    const at::Tensor grad = read(grad_hy);
    const at::Tensor saved = read(workspace);
    const auto parts = gates_of(saved, 5);
    const at::Tensor &reset = parts[0], &update = parts[1], &candidate = parts[2], &hx = parts[3];
    const at::Tensor& hidden_new = parts[4];
    grad_hx = grad * update;
    const at::Tensor grad_update = grad * (hx - candidate) * (1 - update) * update;
    const at::Tensor grad_new = grad * (1 - update) * (1 - candidate * candidate);
    const at::Tensor grad_reset = grad_new * hidden_new * (1 - reset) * reset;
    grad_input = at::cat({grad_reset, grad_update, grad_new}, 1);
    grad_hidden = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
    if (has_bias) {
      grad_input_bias = grad_input.sum(0);
      grad_hidden_bias = grad_hidden.sum(0);
    }
  }
  return {adopted(grad_input, device), adopted(grad_hidden, device), adopted(grad_hx, device),
          adopted(grad_input_bias, device), adopted(grad_hidden_bias, device)};
}

}  // namespace npu::ops
