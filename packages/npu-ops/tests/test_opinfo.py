"""Every op of torch's OpInfo database, a few samples each, against the CPU.

float32 goes forward and backward. Each of the other dtypes goes forward with every third op, so
that the file stays within a minute. What needs more than a comparison is in the other files.
"""

import itertools

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

SAMPLES = {torch.float32: 2, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}
THIRDS = {torch.bfloat16: 0, torch.int64: 1, torch.bool: 2}

# Ops whose result is not a function of their arguments.
UNDEFINED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}

# torch answers differently by device, before any kernel of ours: it wants the CPU for the indices,
# and reads another row of its table of chunk sizes.
BY_DEVICE = {
    ("tensor_split", ""),
    ("nn.functional.linear_cross_entropy", "chunked"),
    ("nn.functional.linear_cross_entropy", "chunked_none"),
}

CASES = [
    pytest.param(op, dtype, id=f"{op.formatted_name}-{str(dtype).removeprefix('torch.')}")
    for number, op in enumerate(op_db)
    for dtype in SAMPLES
    if THIRDS.get(dtype, number % 3) == number % 3
    and dtype in op.supported_dtypes("cpu")
    and (op.name, op.variant_test_name) not in BY_DEVICE
]

pytestmark = pytest.mark.filterwarnings("ignore")  # hundreds of ops warn; none of it is about npu


def on_npu(arguments):
    """Copies of the arguments on npu, with the strides of the originals."""

    def move(value):
        if isinstance(value, torch.Tensor):
            there = value.detach().to("npu")
            if value.layout is torch.strided and there.stride() != value.stride():
                there = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="npu"
                ).copy_(value.detach())
            return there.requires_grad_(value.requires_grad)
        return "npu" if value == "cpu" or value == torch.device("cpu") else value

    return tree_map(move, arguments)


def on_cpu(results):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), results)


def is_on_npu(leaf):
    return leaf == "npu" if isinstance(leaf, str) else getattr(leaf, "is_npu", False)


def outcome(op, arguments):
    """What a call gives: its result, or the class of its error."""
    torch.manual_seed(7)
    try:
        return op(arguments[0], *arguments[1], **arguments[2])
    except Exception as error:  # noqa: BLE001  # the class is compared
        return type(error)


def gradients(arguments, results):
    inputs = [leaf for leaf in tree_leaves(arguments) if getattr(leaf, "requires_grad", False)]
    outputs = [
        leaf
        for leaf in tree_leaves(results)
        if getattr(leaf, "requires_grad", False) and leaf.layout is torch.strided
    ]
    if not inputs or not outputs:
        return None
    seeds = [torch.ones_like(output) for output in outputs]
    try:
        return torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
    except Exception as error:  # noqa: BLE001  # the class is compared
        return type(error)


@pytest.mark.parametrize("op, dtype", CASES)
def test_op_equals_the_cpu(op, dtype):
    with_gradient = dtype is torch.float32 and op.supports_autograd
    samples = op.sample_inputs("cpu", dtype, requires_grad=with_gradient)
    for sample in itertools.islice(samples, SAMPLES[dtype]):
        there = on_npu((sample.input, sample.args, sample.kwargs))
        here = tree_map_only(
            torch.Tensor,
            lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad),
            (sample.input, sample.args, sample.kwargs),
        )
        expected, got = outcome(op, here), outcome(op, there)
        if isinstance(expected, type):
            assert got is expected
            continue
        if op.name not in UNDEFINED:
            torch.testing.assert_close(on_cpu(got), on_cpu(expected), equal_nan=True)
        if any(is_on_npu(leaf) for leaf in tree_leaves(there)):
            results = [leaf for leaf in tree_leaves(got) if isinstance(leaf, torch.Tensor)]
            assert all(is_on_npu(result) for result in results)
        if with_gradient:
            expected, got = gradients(here, expected), gradients(there, got)
            if isinstance(expected, type):
                assert got is expected
            else:
                torch.testing.assert_close(on_cpu(got), on_cpu(expected), equal_nan=True)
