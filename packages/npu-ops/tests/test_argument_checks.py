"""Arguments that end the process in torch's CPU kernels raise on npu; arguments that fit work.

The calls that must raise were found by `python -m npu_ops.op_conformance.fuzz`.
"""

import re

import pytest
import torch

aten = torch.ops.aten
CODE = r"\[argument-contract\]"


def of(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def index(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def on(device, value):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda each: each.to(device), value)


def none(count):
    return (None,) * count


# The op, arguments that end the process on the CPU, and a part of the message.
WRONG = [
    (aten.native_batch_norm, (of(2, 3), *none(4), False, 0.0, 0.0), "`running_mean` and"),
    (aten.native_batch_norm, (of(2, 3), of(2), *none(3), True, 0.0, 0.0), "`weight` must hold one"),
    (
        aten._native_batch_norm_legit.no_stats,
        (of(2, 3), None, None, False, 0.0, 0.0),
        "`training` must",
    ),
    (
        aten._batch_norm_no_update,
        (of(2, 3), *none(4), 0.0, 0.0),
        "`running_mean` and `running_var`",
    ),
    (
        aten.native_batch_norm_backward,
        (of(2, 3), of(2, 3), *none(5), True, 1e-5, [True] * 3),
        "`save_mean` and `save_invstd`",
    ),
    (
        aten.native_batch_norm_backward,
        (of(2, 3), of(4, 3), *none(3), of(3), of(3), True, 1e-5, [True] * 3),
        "the shape of the input",
    ),
    (aten._weight_norm_interface, (of(2), of(0), 0), "`g` must hold one element per slice"),
    (aten._weight_norm_interface, (of(0, 7), of(0), 0), "`v` must have a slice"),
    (
        aten._weight_norm_interface_backward,
        (of(2), of(2, 3), of(2, 1), of(2, 1), 0),
        "`grad_w` must be contiguous",
    ),
    (aten.reflection_pad1d_backward, (of(2, 3), of(2, 3), []), "`padding` must have 2 elements"),
    (aten.reflection_pad2d_backward, (of(1, 2, 3), of(1, 2, 3), []), "`padding` must have 4 elem"),
    (
        aten.reflection_pad2d_backward,
        (of(2, 13, 3), of(2, 3, 3), [0, 0, 5, 5]),
        "smaller than the reflected size",
    ),
    (aten.reflection_pad3d_backward, (of(1, 3, 3, 3), of(9, 3, 3, 3), [0] * 6), "the planes of"),
    (aten.replication_pad2d_backward, (of(1, 3, 3), of(9, 3, 3), [0] * 4), "the planes of"),
    (aten.fractional_max_pool2d_backward, (of(1, 2, 2), of(1, 4, 4), [2], [], index()), "2 elem"),
    (
        aten.fractional_max_pool3d_backward,
        (of(1, 2, 2, 2), of(1, 4, 4, 4), [1], [], index(0)),
        "`output_size` must have 3 elements",
    ),
    (
        aten.fractional_max_pool3d_backward,
        (of(1, 2, 2, 2), of(1, 4, 4, 4), [2] * 3, [2] * 3, index(0)),
        "`indices` must be contiguous and of the shape",
    ),
    (
        aten._slow_conv2d_backward.output_mask,
        (of(2, 3), of(2, 3), of(2, 3), [2, 3], [], [], [True] * 3),
        "`stride` must have 2 elements",
    ),
    (
        aten._slow_conv2d_backward.output_mask,
        (of(1, 1, 3, 3), of(4, 1, 4, 4), of(1, 1, 2, 2), [2] * 2, [1] * 2, [0] * 2, [True] * 3),
        "the batch of the input",
    ),
    (
        aten._slow_conv2d_forward,
        (of(1, 1, 4, 4), of(1, 5), [2, 2], None, [1, 1], [0, 0]),
        "`weight` must hold channels",
    ),
    (aten._nnpack_spatial_convolution, (of(), of(), of(), [2], [1, 1]), "have 4 dims"),
    (
        aten._nnpack_spatial_convolution,
        (of(1, 1, 4, 4), of(1, 1, 2, 2), None, [0, 0], [0, 0]),
        "`stride` must be positive",
    ),
    (
        aten._thnn_differentiable_gru_cell_backward,
        (of(2, 4), of(2, 4), of(2, 4), of(2, 4), None, None),
        "must have 3 columns",
    ),
    (
        aten._thnn_differentiable_lstm_cell_backward,
        (None, of(2, 1), of(2, 5), of(2, 5), None, None, of(2, 1), of(2, 1)),
        "must have 4 columns",
    ),
    (aten.quantized_lstm_cell, (of(2, 3), [], *[of(2, 3)] * 8, 1, 1, 1, 1), "`hx` must hold two"),
    (aten._transform_bias_rescale_qkv, (of(2, 3, 4), of(4), 0), "`num_heads` must be positive"),
    (aten._transform_bias_rescale_qkv, (of(1, 2, 0), of(0), 1), "have a width"),
    (aten._dyn_quant_matmul_4bit, (of(1, 4), of(4), 0, 4, 5), "`block_size` must divide"),
    (aten._dyn_quant_matmul_4bit, (of(1, 64), of(129).abs(), 32, 64, 4), "weights and scales of"),
    (aten._dyn_quant_pack_4bit_weight, (of(4, 16), of(4), None, 0, 32, 4), "`block_size` must"),
    (aten._saturate_weight_to_fp16, (of(1, 5, 0, 0, 3),), "rows \\* columns"),
    (
        aten._convert_indices_from_csr_to_coo,
        (index(0, 9, 2), index(0, 1)),
        "must be ascending from 0",
    ),
    (aten._convert_indices_from_csr_to_coo, (index(0, 1), index(0, 1).view(1, 2)), "same batch"),
    (aten._convert_indices_from_coo_to_csr, (index(0, 900_000_000), 3), "0 to `size` - 1"),
    (aten._cummax_helper, (of(3, 4), of(3, 4), torch.zeros(3, 4).long(), -1), "`dim` must be from"),
    (aten._cummin_helper, (of(3, 4), of(3), torch.zeros(3, 4).long(), 0), "the shape of `self`"),
    (aten._remove_batch_dim, (of(1, 1), 2, 3, 2_147_483_647), "`out_dim` must be from 0"),
    (aten._fft_r2c, (of(4, 3), [-2], 0, True), "`dim` must be from 0"),
    (aten._fft_c2r, (of(4, 4, dtype=torch.complex64), [-2], 0, 1), "`dim` must be from 0"),
    (aten._cdist_backward, (of(2, 2), of(2, 2), of(2, 2), 2.5, of(0)), "per pair of rows"),
    (aten._pdist_backward, (of(1), of(3, 2), 2.0, of(3)), "per pair of rows"),
    (aten._cholesky_solve_helper, (of(0, 3), of(3, 0), False), "`A` must be square"),
    (aten._foreach_copy, ([of(1)], [of(1), of(1)]), "lists of the same length"),
    (aten._fused_sgd_, ([of(3)], [of(2)], []), "of the shapes of the parameters"),
    (
        aten._nested_from_padded,
        (of(1, 5, 0, 4, 1), of(1, 5, 0, 4, 1, dtype=torch.int64), False),
        "a row of sizes per tensor",
    ),
    (
        aten._nested_compute_contiguous_strides_offsets,
        (of(0, 5, dtype=torch.int64),),
        "a row of sizes per tensor",
    ),
    (aten._reshape_alias, (of(2), [2], [2**40]), "stay within the storage"),
    (aten._reshape_alias_copy, (of(2), [2], [2**40]), "stay within the storage"),
    (
        aten._embedding_bag_dense_backward,
        (of(2, 3), index(0, 9), index(0, 1), index(1, 1), index(0), 3, False, 0, None),
        "`indices` must be from 0 to 2",
    ),
    (
        aten._embedding_bag_dense_backward,
        (of(2, 3), index(0), index(7), index(1, 1), index(0), 3, False, 0, None),
        "`offset2bag` must be from 0 to 1",
    ),
    (
        aten._embedding_bag_dense_backward,
        (of(2, 3), index(0), index(0), index(1), index(0), 3, False, 1, None),
        "`bag_size` must hold one element per bag",
    ),
    (
        aten._embedding_bag_dense_backward,
        (of(2, 3), index(0), index(0), index(1, 1), index(0), 3, False, 0, of(1, 0)),
        "must be vectors",
    ),
    (aten.embedding_dense_backward, (of(2, 3), index(0, 9), 3, -1, True), "`indices` must be from"),
]
FUSED_SGD = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0} | dict.fromkeys(
    ("nesterov", "maximize", "is_first_step"), False
)


def named(rows):
    return [pytest.param(*row, id=f"{row[0]}-{number}") for number, row in enumerate(rows)]


@pytest.mark.parametrize("op, arguments, message", named(WRONG))
def test_arguments_that_end_the_process_elsewhere_raise(op, arguments, message):
    keywords = FUSED_SGD if op is aten._fused_sgd_ else {}
    with pytest.raises(RuntimeError, match=f"{message}.*{CODE}"):
        op(*on("npu", arguments), **keywords)


def test_out_forms_raise_as_well():
    out = of(2, 3).to("npu")
    with pytest.raises(RuntimeError, match=f"at least one tensor.*{CODE}"):
        aten._stack.out([], 0, out=out)
    with pytest.raises(RuntimeError, match=f"`out` must have the dtype of `self`.*{CODE}"):
        aten._logcumsumexp.out(out, 0, out=out.bfloat16())
    with pytest.raises(RuntimeError, match=f"`out` must be complex.*{CODE}"):
        aten._fft_r2c.out(out, [0], 0, False, out=out)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_functional_copy_of_a_compressed_tensor_raises():
    compressed = of(2, 4).to_sparse_csc().to("npu")
    with pytest.raises(RuntimeError, match=f"`self` must be strided.*{CODE}"):
        aten.copy(compressed, compressed)


def test_too_few_dims_are_an_index_error_as_in_torchs_other_kernels():
    flat, none_given = of(2, 3).to("npu"), index(0).to("npu")
    with pytest.raises(IndexError, match=CODE):
        aten.reflection_pad2d_backward(flat, flat, [])
    with pytest.raises(IndexError, match=CODE):
        aten.fractional_max_pool3d_backward(flat, flat, [1], [], none_given)
    with pytest.raises(IndexError, match=f"must have shape \\(bags, width\\).*{CODE}"):
        aten._embedding_bag_dense_backward(of(3).to("npu"), *on("npu", BAG))
    with pytest.raises(IndexError, match=f"must have shape \\(bags, width\\).*{CODE}"):
        aten._embedding_bag_dense_backward(of(3).to("npu"), *on("npu", (index(9), *BAG[1:])))


def test_what_torch_refuses_itself_keeps_torchs_class():
    integers = index(1, 2).view(1, 2).to("npu")
    with pytest.raises(NotImplementedError, match="not implemented for"):
        aten.native_batch_norm(integers, *none(4), False, 0.0, 0.0)
    with pytest.raises(ValueError, match="neither be None"):
        aten.native_batch_norm(of(2, 3).to("npu"), *none(3), of(3).to("npu"), False, 0.0, 0.0)
    with pytest.raises(IndexError, match="out of range"):
        aten._cummax_helper(integers, integers, integers, 7)


NONE_GIVEN = index(0)[:0]
BAG = (index(0), index(0), index(1), NONE_GIVEN, 3, False, 0, None)
# Calls that torch's CPU kernel refuses although a check of the op would as well.
REFUSED_BY_TORCH = [
    (aten._cummax_helper, [of(2, 3).to(torch.float8_e5m2)] * 3 + [-1]),
    (aten.fractional_max_pool3d_backward, (*[of(2, 2).to_sparse()] * 2, [], [], index(0))),
    (
        aten.fractional_max_pool3d_backward,
        (of(0), of(1, 1, 1, 1, 1, 1), [1] * 6, [1] * 6, index(0)),
    ),
    (aten.fractional_max_pool2d_backward, (of(2), of(1, 4, 4), [2] * 2, [2] * 2, index(0))),
    (aten._nested_compute_contiguous_strides_offsets, (index(1, 2),)),
    (aten._dyn_quant_matmul_4bit, (of(), of(4), 0, 4, 5)),
    (aten._embedding_bag_dense_backward, (of(2, 3).to_sparse(), *BAG)),
    (aten._embedding_bag_dense_backward, (of(3), index(0).float(), *BAG[1:])),
    (aten._embedding_bag_dense_backward, (of(3), index(0), index(0).int(), *BAG[2:])),
    (aten._embedding_bag_dense_backward, (of(3), *BAG[:2], of(1), *BAG[3:])),
    (aten._embedding_bag_dense_backward, (of(2, 3), index(0, 1).view(1, 2), *BAG[1:])),
    (aten._embedding_bag_dense_backward, (of(2, 3), index(0, 7), *BAG[1:])),
    (aten._embedding_bag_dense_backward, (of(3), *BAG[:6], 5, None)),
    (aten._embedding_bag_dense_backward, (of(3), *BAG[:4], -3, *BAG[5:])),
]


@pytest.mark.parametrize("op, arguments", named(REFUSED_BY_TORCH))
def test_what_torch_refuses_itself_keeps_the_class_of_the_cpu(op, arguments):
    with pytest.raises(Exception) as expected:
        op(*arguments)
    with pytest.raises(Exception) as got:
        op(*on("npu", arguments))
    assert got.type is expected.type
    assert not re.search(CODE, str(got.value))


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_quantized_tensors_are_torchs_to_refuse():
    flat = torch.quantize_per_tensor(of(2, 3), 0.1, 3, torch.quint8).to("npu")
    with pytest.raises(NotImplementedError, match="Quantized"):
        aten.reflection_pad2d_backward(flat, flat, [])


STATISTICS = (of(3), of(3), of(3), of(3).abs())
BAGS = (index(0, 2, 1, 0), index(0, 0, 1, 1), index(2, 2), index())
# Arguments that fit, for each check.
RIGHT = [
    (aten.native_batch_norm, (of(2, 3, 4), *STATISTICS, True, 0.1, 1e-5)),
    (aten.native_batch_norm, (of(2, 3, 4), *STATISTICS, False, 0.1, 1e-5)),
    (aten.native_batch_norm, (of(2, 3, 4), *none(4), True, 0.1, 1e-5)),
    (aten._native_batch_norm_legit, (of(2, 3), *STATISTICS, False, 0.1, 1e-5)),
    (aten._native_batch_norm_legit.no_stats, (of(2, 3), of(3), of(3), True, 0.1, 1e-5)),
    (aten._batch_norm_with_update, (of(2, 3), *STATISTICS, 0.1, 1e-5)),
    (aten._batch_norm_no_update, (of(2, 3), *STATISTICS, 0.1, 1e-5)),
    (
        aten.native_batch_norm_backward,
        (of(2, 3), of(2, 3), *STATISTICS[1:], of(3), of(3), True, 1e-5, [True] * 3),
    ),
    (  # as after a forward that did not train, which saves nothing
        aten.native_batch_norm_backward,
        (of(2, 3), of(2, 3), *STATISTICS[1:], of(0), of(0), False, 1e-5, [True] * 3),
    ),
    (aten._weight_norm_interface, (of(2, 3), of(2, 1), 0)),
    (aten._weight_norm_interface, (of(2, 3), of(1, 3), 1)),
    (aten._weight_norm_interface_backward, (of(2, 3), of(2, 3), of(2, 1), of(2, 1), 0)),
    (aten.reflection_pad1d_backward, (of(2, 5), of(2, 3), [1, 1])),
    (aten.reflection_pad2d_backward, (of(1, 2, 5, 5), of(1, 2, 3, 3), [2, 0, 1, 1])),
    (aten.reflection_pad2d_backward, (of(2, 2, 3), of(2, 3, 3), [0, 0, -1, 0])),
    (aten.reflection_pad3d_backward, (of(1, 3, 3, 5), of(1, 3, 3, 3), [1, 1, 0, 0, 0, 0])),
    (aten.replication_pad1d_backward, (of(2, 12), of(2, 3), [4, 5])),
    (aten.replication_pad2d_backward, (of(1, 5, 3), of(1, 3, 3), [0, 0, 1, 1])),
    (aten.replication_pad3d_backward, (of(1, 3, 3, 5), of(1, 3, 3, 3), [1, 1, 0, 0, 0, 0])),
    (
        aten.fractional_max_pool2d_backward,
        (of(1, 2, 2), of(1, 4, 4), [2, 2], [2, 2], index(0, 3, 9, 15).view(1, 2, 2)),
    ),
    (
        aten.fractional_max_pool3d_backward,
        (of(1, 1, 2, 2), of(1, 4, 4, 4), [2] * 3, [1, 2, 2], index(0, 3, 9, 63).view(1, 1, 2, 2)),
    ),
    (aten._adaptive_avg_pool2d, (of(1, 4, 4), [2, 2])),
    (aten._adaptive_avg_pool3d, (of(1, 4, 4, 4), [2, 2, 1])),
    (aten._slow_conv2d_forward, (of(2, 1, 4, 4), of(3, 4), [2, 2], of(3), [1, 1], [0, 0])),
    (
        aten._slow_conv2d_backward.output_mask,
        (of(2, 3, 3, 3), of(2, 1, 4, 4), of(3, 1, 2, 2), [2] * 2, [1] * 2, [0] * 2, [True] * 3),
    ),
    (
        aten._thnn_differentiable_gru_cell_backward,
        (of(2, 3), of(2, 9), of(2, 9), of(2, 3), of(9), of(9)),
    ),
    (
        aten._thnn_differentiable_lstm_cell_backward,
        (of(2, 3), of(2, 3), of(2, 12), of(2, 12), None, None, of(2, 3), of(2, 3)),
    ),
    (aten._transform_bias_rescale_qkv, (of(2, 3, 12), of(12), 2)),
    (aten._dyn_quant_matmul_4bit, (of(2, 64), of(136).abs(), 32, 64, 4)),
    (aten._saturate_weight_to_fp16, (of(2, 3) * 1e6,)),
    (aten._convert_indices_from_csr_to_coo, (index(0, 1, 1, 3), index(2, 0, 1))),
    (aten._convert_indices_from_csr_to_coo, (index(0, 1, 0, 1).view(2, 2), index(0, 1).view(2, 1))),
    (aten._convert_indices_from_csr_to_coo, (index(0), index())),
    (aten._convert_indices_from_coo_to_csr, (index(0, 0, 2), 3)),
    (aten._convert_indices_from_coo_to_csr, (index(), 3)),
    (aten._cummax_helper, (of(3, 4), of(3, 4), torch.zeros(3, 4).long(), 1)),
    (aten._cummin_helper, (of(3, 4), of(3, 4), torch.zeros(3, 4).long(), 0)),
    (aten._remove_batch_dim, (of(2, 3), 1, 4, 0)),
    (aten._fft_r2c, (of(4, 3), [0, 1], 0, True)),
    (aten._fft_c2r, (of(4, 3, dtype=torch.complex64), [0, 1], 2, 4)),
    (aten._fft_c2c, (of(4, 3, dtype=torch.complex64), [1], 0, True)),
    (aten._fft_c2c, (of(4, 3, dtype=torch.complex64), [], 0, True)),
    (aten._cdist_backward, (of(2, 3), of(2, 4), of(3, 4), 1.0, of(2, 3))),
    (aten._cdist_backward, (of(5, 2, 3), of(5, 2, 4), of(3, 4), 1.0, of(5, 2, 3))),
    (aten._pdist_backward, (of(3), of(3, 2), 2.0, of(3).abs())),
    (aten._cholesky_solve_helper, (of(3, 2), torch.eye(3) * 2, False)),
    (aten._cholesky_solve_helper, (of(2, 3, 2), torch.eye(3).repeat(2, 1, 1), True)),
    (aten._foreach_copy, ([of(2), of(3)], [of(2) + 1, of(3) + 1])),
    (aten._nested_from_padded, (of(2, 2, 3), index(1, 2, 2, 3).view(2, 2), False)),
    (aten._nested_compute_contiguous_strides_offsets, (index(1, 2, 2, 3).view(2, 2),)),
    (aten._nested_compute_contiguous_strides_offsets, (torch.tensor(3),)),
    (aten._reshape_alias, (of(2, 3), [3, 2], [2, 1])),
    (aten._reshape_alias, (of(6)[1:], [5], [1])),
    (aten._reshape_alias, (of(0), [0, 4], [2**40, 1])),
    (aten._reshape_alias_copy, (of(2, 3), [6], [1])),
    (aten._embedding_bag_dense_backward, (of(2, 3), *BAGS, 3, True, 1, None)),
    (  # the last bag is of no index
        aten._embedding_bag_dense_backward,
        (of(2, 3), index(1), index(0, 9), index(1, 0), index(), 3, False, 0, of(1)),
    ),
    (aten._embedding_bag_dense_backward, (of(2, 3), *[index()] * 4, 3, False, 0, None)),
    (aten.embedding_dense_backward, (of(2, 3), index(0, 2), 3, -1, True)),
]


@pytest.mark.filterwarnings("ignore:.*prototype", "ignore:.*_remove_batch_dim")
@pytest.mark.parametrize("op, arguments", named(RIGHT))
def test_arguments_that_fit_give_the_cpus_result(op, arguments):
    expected = op(
        *on("cpu", [each.clone() if torch.is_tensor(each) else each for each in arguments])
    )
    got = op(*on("npu", arguments))
    for mine, theirs in zip(leaves(got), leaves(expected), strict=True):
        assert mine.device.type == "npu"
        torch.testing.assert_close(mine.cpu(), theirs)


def leaves(value):
    tensors = [each for each in torch.utils._pytree.tree_leaves(value) if torch.is_tensor(each)]
    return [part for each in tensors for part in (each.unbind() if each.is_nested else [each])]


def test_gradients_pass_through_a_composition_that_is_checked():
    gates = of(2, 9).to("npu").requires_grad_()
    given = on("npu", (of(2, 9), of(2, 3), None, None))
    result = aten._thnn_differentiable_gru_cell_backward(of(2, 3).to("npu"), gates, *given)
    result[0].sum().backward()
    assert gates.grad.device.type == "npu"
    with torch.inference_mode(), pytest.raises(RuntimeError, match=CODE):
        aten._remove_batch_dim(given[0], 2, 3, -9)
