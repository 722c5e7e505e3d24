import pytest

from npu_profiler.roofline.layer_cost import count_cost, parse_arrays


def cost(kind, inputs, outputs):
    return count_cost(kind, parse_arrays(inputs), parse_arrays(outputs))


@pytest.mark.parametrize(
    "kind, inputs, outputs, flops, size_bytes",
    [
        ("FullyConnected", "f32[2,3,8] f32[5,8] f32[5]", "f32[2,3,5]", 2 * 6 * 8 * 5, 492),
        # Weights of 4 bits; "dynamic[0]" is a bias that is not there.
        ("FullyConnected", "bf16[1,8] u4[4,8] dynamic[0]", "bf16[1,4]", 64, 16 + 16 + 8),
        # Weights of 8 bits with a scale and a zero point for each row.
        (
            "FullyConnectedCompressed",
            "bf16[1,8] u8[4,8] dynamic[0] f32[4,1] u8[4,1]",
            "bf16[1,4]",
            64,
            16 + 32 + 16 + 4 + 8,
        ),
        ("MatMul", "f32[3,4,8] f32[3,8,5]", "f32[3,4,5]", 2 * 3 * 4 * 8 * 5, 4 * 276),
        # The first stored transposed: (8, 4) times (8, 5) is (4, 5).
        ("MatMul", "f32[8,4] f32[8,5]", "f32[4,5]", 2 * 4 * 8 * 5, 4 * 92),
        ("Convolution", "f32[1,3,8,8] f32[4,3,3,3]", "f32[1,4,8,8]", 2 * 256 * 27, 4 * 556),
        # Four groups of one channel each: 9 products for each output.
        ("GroupConvolution", "f32[1,4,8,8] f32[4,1,1,3,3]", "f32[1,4,8,8]", 2 * 256 * 9, 4 * 548),
        ("Deconvolution", "f32[1,4,2,2] f32[4,3,2,2]", "f32[1,3,4,4]", 2 * 16 * 12, 4 * 112),
        ("ScaledDotProductAttention", "f32[1,2,3,4] f32[1,2,5,4] f32[1,2,5,4]", "f32[1,2,3,4]",
         (2 * 4 + 5 + 2 * 4) * 2 * 3 * 5, 4 * 128),
        ("Linear", "f32[2,8] u4[8,8] f16[8] u8[8]", "f32[2,4]", 256, 64 + 32 + 16 + 8 + 32),
        ("QKVProjection", "f32[1,2,8] f32[8,8] f32[4,8] f32[4,8]", "f32[1,2,8] f32[1,2,4]",
         2 * 2 * (64 + 32 + 32), 4 * (16 + 64 + 64 + 24)),
        ("Softmax", "f32[4,4]", "f32[4,4]", 80, 128),
        ("ReduceMean", "f32[4,8] i32[1]", "f32[4,1]", 32, 128 + 4 + 16),
        ("Transpose", "f32[4,8] i32[2]", "f32[8,4]", 0, 264),
        ("Reshape", "f32[4,8] i32[1]", "f32[32]", 0, 0),
        ("Assign", "f32[4,8]", "", 0, 128),
    ],
)  # fmt: skip
def test_operations_and_bytes(kind, inputs, outputs, flops, size_bytes):
    found = cost(kind, inputs, outputs)
    assert (found.flops, found.size_bytes) == (flops, size_bytes)


def test_attention_reads_its_cache_once_and_with_the_new_rows():
    inputs = (
        "bf16[1,9,1,64] bf16[1,3,1,64] bf16[1,3,1,64] bf16[1,1,1,33] f32[1] i32[1] "
        "f32[1,3,32,64] f32[1,3,32,64]"
    )
    found = cost(
        "ScaledDotProductAttentionWithKVCache",
        inputs,
        "bf16[1,9,1,64] f32[1,3,33,64] f32[1,3,33,64]",
    )
    assert found.flops == 9 * 33 * (2 * 64 + 5 + 2 * 64)
    new = 2 * (9 * 64 + 2 * 3 * 64 + 33) + 8
    assert found.size_bytes == new + 2 * 9 * 64 + 2 * 4 * 3 * 33 * 64


def test_picking_rows_does_not_read_the_table():
    found = cost("Gather", "f16[49152,576] i32[1,2] i32[1]", "f16[1,2,576]")
    assert found.size_bytes == 12 + 2 * 2 * 2 * 576


def test_arithmetic_of_indices_is_no_floating_point_work():
    assert cost("Add", "i32[4] i32[4]", "i32[4]").flops == 0
    assert cost("Add", "f32[4] f32[4]", "f32[4]").flops == 4


def test_an_unknown_type_has_bytes_and_no_operations():
    found = cost("Subgraph", "f32[4,8]", "f32[4,8]")
    assert (found.flops, found.size_bytes) == (None, 256)


@pytest.mark.parametrize("outputs", ["f32[?,8]", ""])
def test_sizes_that_are_not_known_are_not_guessed(outputs):
    assert cost("Softmax", "f32[?,8]", outputs).flops is None
    assert cost("Softmax", "f32[?,8]", outputs).size_bytes is None
