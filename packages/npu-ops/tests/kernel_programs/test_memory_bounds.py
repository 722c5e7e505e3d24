"""Programs of random shapes with weights and rows that end at a forbidden page."""

from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_ops.kernel_programs.execution import Execution
from npu_ops.kernel_programs.program import Rows
from npu_ops.kernel_programs.weights import PackedLinear, unpack

from .conftest import at_the_end_of_memory, rounded
from .test_execution import ATTENDS, a_layer, one_sequence_of


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_nothing_is_read_behind_weights_and_rows(kernel_set, data):
    key_heads = data.draw(st.integers(1, 3))
    shape = {
        "heads": key_heads * data.draw(st.integers(1, 5)),
        "key_heads": key_heads,
        "key_size": data.draw(st.integers(1, 40)),
        "value_size": data.draw(st.integers(1, 40)),
    }
    program, weights = a_layer(**(shape | ATTENDS[data.draw(st.sampled_from([*ATTENDS]))]))
    kind = data.draw(st.sampled_from(["float32", "bfloat16", "float16", "int8"]))
    weights = {
        name: rounded(unpack(weight), kind, 32) if isinstance(weight, PackedLinear) else weight
        for name, weight in weights.items()
    }
    guarded = {name: at_the_end_of_memory(weight) for name, weight in weights.items()}
    cache = data.draw(st.sampled_from(["float32", "bfloat16", "u8"]))
    both = (weights, guarded)
    made = [Execution(program, one, cache=cache, kernel_set=kernel_set) for one in both]
    known, found = made
    start = 0
    for count in data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3)):
        rows = one_sequence_of(start, count)
        start += count
        blocks = -(-start // 16)
        rows = replace(rows, block_tables=rows.block_tables[:, :blocks].contiguous())
        for one in made:
            one.reserve(blocks)
        tensors = {name: one for name, one in vars(rows).items() if isinstance(one, torch.Tensor)}
        there = Rows(**{name: at_the_end_of_memory(tensors[name]) for name in tensors})
        assert torch.equal(found.step(there), known.step(rows))
