"""Views among the results of graphs with sizes that vary: strides and memory are torch's."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import fx, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetModel,
)

from npu_compiler.buckets import BucketedGraph
from npu_compiler.buckets.sizes import Sizes
from npu_compiler.errors import IndexRangeError

VIEWS = {
    "cut": lambda x: x[:, : x.shape[1] - 1],
    "row_from_the_end": lambda x: x[x.shape[0] - 1],
    "expanded": lambda x: x[:, :1].expand(x.shape[0], x.shape[1]),
    "narrowed_and_turned": lambda x: x.narrow(1, x.shape[1] - 2, 2).t(),
    "beside_a_result": lambda x: (x[:, : x.shape[1] - 1], x[:, : x.shape[1] - 1] * 2),
    "of_a_result": lambda x: (lambda y: (y, y[:, : y.shape[1] - 1], y[1:]))(x * 2),
}
INPUTS = {
    "contiguous": lambda: torch.arange(35.0).reshape(5, 7),
    "every_second": lambda: torch.arange(48.0).reshape(6, 8)[:, ::2],
    "inside": lambda: torch.arange(48.0).reshape(6, 8)[1:4, 2:5],
}


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="npu", dynamic=True, options={"buckets": [4, 8]})


@pytest.mark.parametrize("layout", INPUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_have_the_values_and_strides_of_torchs(view, layout):
    function, x = VIEWS[view], INPUTS[layout]()
    expected, found = function(x), compiled(function)(x)
    pairs = (
        zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    )
    for theirs, ours in pairs:
        assert torch.equal(ours, theirs)
        if theirs._base is x or theirs._base is x._base is not None:
            assert ours.stride() == theirs.stride()
            assert ours.data_ptr() == theirs.data_ptr()


def test_a_view_that_joins_dimensions_with_gaps():
    x = torch.arange(12.0).reshape(3, 4)[:, ::2]
    found = compiled(lambda x: x.view(-1))(x)
    assert torch.equal(found, x.reshape(-1))
    assert found.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_view_with_a_dimension_of_none(rows):
    fast = compiled(lambda x: (x.reshape(x.shape[0], 2, 2) * 2, x[:0].reshape(0, 2, 2) + 1))
    x = torch.ones(rows, 4)
    doubled, nothing = fast(x)
    assert torch.equal(doubled, torch.full((rows, 2, 2), 2.0))
    assert nothing.shape == (0, 2, 2)


POWERS = {"buckets": "powers of two"}
VOCABULARY = 99
LONGEST = 40
# In three buckets, the last of which is cut at the longest.
LENGTHS = (19, 30, 33, 40, 6, 8, 21)


def bert():
    return BertModel(
        BertConfig(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
            vocab_size=VOCABULARY,
            max_position_embeddings=LONGEST,
        )
    ).eval()


def llama():
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            vocab_size=VOCABULARY,
            max_position_embeddings=LONGEST,
        )
    ).eval()


def buckets(sizes):
    """Powers of two, up to the positions there are."""
    return {min(1 << (size - 1).bit_length(), LONGEST) for size in sizes}


def ids_of(length, rows=2):
    ids = torch.randint(0, VOCABULARY, (rows, length))
    torch._dynamo.maybe_mark_dynamic(ids, 1)
    return ids


def test_bert_of_many_lengths_compiles_once_per_bucket(compiled, close):
    model = bert()
    fast = compiled(model, options=POWERS)
    with torch.no_grad():
        for length in LENGTHS:
            ids, mask = ids_of(length), torch.ones(2, length, dtype=torch.long)
            mask[0, length // 2 :] = 0
            torch._dynamo.maybe_mark_dynamic(mask, 1)
            given = {"input_ids": ids, "attention_mask": mask}
            close(tuple(fast(**given).values()), tuple(model(**given).values()))
    assert fast.programs <= len(buckets(LENGTHS))
    assert fast.eager_ops == []


def test_decoder_of_many_lengths_compiles_once_per_bucket(compiled, close):
    model = llama()
    fast = compiled(model, options=POWERS)
    with torch.no_grad():
        for length in LENGTHS:
            ids = ids_of(length)
            close(fast(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
    assert fast.programs <= len(buckets(LENGTHS))
    assert fast.eager_ops == []


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_resnet_of_four_batch_sizes_compiles_once_per_bucket(compiled, close, device):
    model = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))
    batches = {rows: torch.randn(rows, 3, 32, 32) for rows in (5, 7, 8, 4)}
    with torch.no_grad():
        expected = {rows: model.eval()(x).pooler_output for rows, x in batches.items()}
        fast = compiled(model.to(device), options=POWERS)
        for rows, images in batches.items():
            placed = images.to(device)
            torch._dynamo.maybe_mark_dynamic(placed, 0)
            result = fast(placed).pooler_output
            assert result.device.type == device
            close(result, expected[rows])
    assert fast.programs <= 2
    assert fast.eager_ops == []


def test_length_of_the_first_call_is_static_without_a_mark(compiled, close):
    model = bert()
    fast = compiled(model, options=POWERS)
    with torch.no_grad():
        for length in (19, 25, 30, 27, 19):
            ids = torch.randint(0, VOCABULARY, (2, length))
            close(fast(ids)[0], model(ids)[0])
    assert fast.programs == 2  # 19 alone, then 32, and 16 is not needed


def test_listed_buckets_are_taken(compiled, close):
    model = nn.Linear(4, 3).eval()
    fast = compiled(model, dynamic=True, options={"buckets": [10, 20]})
    with torch.no_grad():
        for rows in (3, 9, 10, 15, 35):
            x = torch.randn(rows, 4)
            close(fast(x), model(x))
    assert fast.programs == 3


def test_changed_weights_reach_every_bucket(compiled, close):
    model = nn.Linear(4, 3).eval()
    fast = compiled(model, dynamic=True, options=POWERS)
    with torch.no_grad():
        for rows in (5, 9):
            fast(torch.randn(rows, 4))
        model.weight.add_(1)
        for rows in (6, 10):
            x = torch.randn(rows, 4)
            close(fast(x), model(x))


def test_results_may_be_sizes_and_inputs(compiled):
    def function(x):
        return x.shape[0] * 2, x, x * 2

    fast = compiled(function, dynamic=True, options=POWERS)
    with torch.no_grad():
        for rows in (5, 7):
            x = torch.randn(rows, 4)
            number, same, doubled = fast(x)
            assert number == rows * 2
            assert same is x
            assert torch.equal(doubled, x * 2)


def test_memory_order_of_results_is_kept(compiled):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).eval()
    fast = compiled(model, dynamic=True, options=POWERS)
    with torch.no_grad():
        for rows in (5, 7):
            x = torch.randn(rows, 3, 9, 9).to(memory_format=torch.channels_last)
            assert fast(x).stride() == model(x).stride()


def test_written_inputs_are_not_padded(compiled, close):
    def function(x, total):
        total.add_(x.sum(0))
        return total * 2

    fast = compiled(function, dynamic=True, options=POWERS)
    ours, theirs = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        for rows in (5, 7, 6):
            x = torch.randn(rows, 4)
            close(fast(x, ours), function(x, theirs))
            close(ours, theirs)


def test_sizes_beyond_the_bound_run_eagerly_and_say_so(compiled, close, caplog, monkeypatch):
    monkeypatch.setattr("npu_compiler.buckets.graph._EXACT_PROGRAMS", 2)

    def turned(x):
        return (x * 2).flip(0)

    fast = compiled(turned, dynamic=True, options=POWERS)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "npu_compiler"):
        for rows in (5, 6, 7, 8, 5):
            x = torch.randn(rows, 4)
            close(fast(x), turned(x))
    assert fast.programs == 2
    assert [record.getMessage()[:25] for record in caplog.records] == ["2 programs were compiled "]


def test_the_op_in_the_way_is_logged(compiled, caplog):
    fast = compiled(lambda x: (x * 2).flip(0), dynamic=True, options=POWERS)
    with torch.no_grad(), caplog.at_level(logging.INFO, "npu_compiler"):
        fast(torch.randn(5, 4))
    assert "aten.flip.default" in caplog.text


def test_data_dependent_sizes_split_the_model(compiled, close):
    first, second = nn.Linear(6, 6).eval(), nn.Linear(6, 2).eval()

    def function(x):
        hidden = torch.tanh(first(x))
        picked = hidden[hidden[:, 0] > 0]
        return torch.relu(second(picked))

    fast = compiled(function, dynamic=True, options=POWERS)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (11, 24, 13, 30):
            x = torch.randn(rows, 6)
            close(fast(x), function(x))
    assert fast.programs >= 2
    assert {record.kind for record in fast.records} == {"inference"}


def test_training_follows_eager_with_a_program_per_size(compiled, close):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    fast = compiled(model, dynamic=True, options=POWERS)
    for rows in (4, 7, 4):
        x = torch.randn(rows, 6)
        model.zero_grad()
        model(x).square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        fast(x).square().sum().backward()
        close([p.grad for p in model.parameters()], expected)
    assert {record.kind for record in fast.records} == {"forward", "backward"}
    assert len(fast.records) == 4


def test_an_index_outside_is_told_without_padded_sizes():
    def pick(table, places):
        return table[places] * 2

    table = torch.randn(5, 3)
    fast = torch.compile(pick, backend="npu", dynamic=True, options=POWERS)
    assert torch.equal(fast(table, torch.tensor([1, -5])), pick(table, torch.tensor([1, -5])))
    with pytest.raises(IndexRangeError) as error:
        fast(table, torch.tensor([0, 5, 1]))
    text = str(error.value)
    assert text.endswith("[index-range]")
    assert "aten.index.Tensor" in text
    assert "test_graph.py:" in text
    assert "index 5 is out of bounds for dimension 0 with size 5" in text


def test_an_input_whose_stride_is_a_size_of_nothing_else():
    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes)
    part, rows = torch.randn(1, 1, 4)[..., :1], torch.randn(1, 5, 1)
    static, dynamic = DimDynamic.STATIC, DimDynamic.DYNAMIC
    inferred = DimDynamic.INFER_STRIDE
    fakes = [
        mode.from_tensor(
            tensor,
            source=ConstantSource(f"x{place}"),
            symbolic_context=StatelessSymbolicContext(
                dynamic_sizes=[static, sizes, static],
                dynamic_strides=[dynamic, dynamic, inferred] if place == 0 else [inferred] * 3,
                constraint_sizes=[None] * 3,
            ),
        )
        for place, (tensor, sizes) in enumerate([(part, static), (rows, dynamic)])
    ]
    with mode:
        captured = make_fx(lambda part, rows: (torch.softmax(part * rows, 1),))(*fakes)
    captured.graph.set_codegen(fx.graph.CodeGen())
    captured.recompile()
    (stride, *_) = fakes[0].stride()
    assert isinstance(stride, torch.SymInt), "the capture has a stride of its own"
    graph = BucketedGraph(
        captured,
        Sizes(captured.graph),
        is_padding=True,
        kept=range(0),
        buckets=[4, 8, 16],
        compile_static=lambda static: lambda inputs: static(*inputs),
    )
    (result,) = graph([part, rows])
    torch.testing.assert_close(result, torch.softmax(part * rows, 1))
