import gc

import pytest
import torch
import transformers
from torch import fx
from torch.fx.experimental import symbolic_shapes

from npu_compiler.lowering import node_origins
from npu_llm.capture.step import LayerCache, capture_step
from npu_llm.errors import CaptureError

aten = torch.ops.aten


@pytest.fixture(scope="module")
def captured(llama):
    """The step of the small Llama, which nobody may change."""
    return capture_step(llama.reference)


def targets(graph_module: fx.GraphModule) -> list:
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


def test_step_has_the_cache_as_inputs_and_outputs(captured):
    placeholders = [node for node in captured.graph_module.graph.nodes if node.op == "placeholder"]
    assert captured.inputs == (
        "input_ids", "attention_mask", "position_ids", "logits_to_keep"
    )  # fmt: skip
    assert captured.layers == (LayerCache(2, 8, 2, 8),) * 2
    assert len(placeholders) == 4 + 2 * 2
    (output,) = (node for node in captured.graph_module.graph.nodes if node.op == "output")
    assert len(output.args[0]) == 1 + 2 * 2


def test_batch_tokens_and_past_stay_symbolic(captured):
    values = [node.meta["val"] for node in captured.graph_module.graph.nodes if node.op != "output"]
    shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
    fixed = {size for shape in shapes for size in shape if isinstance(size, int)}
    assert not {11, 13, 17, 30} & fixed


def test_attention_and_linear_stay_whole(captured):
    found = targets(captured.graph_module)
    assert found.count(aten.scaled_dot_product_attention.default) == 2
    assert aten.linear.default in found
    assert aten.mm.default not in found


def test_graph_gives_the_numbers_of_the_model(captured, llama):
    ids = torch.arange(3, 9).reshape(2, 3)
    past = [torch.zeros(2, 2, 0, 8) for _ in range(4)]
    arguments = (ids, torch.ones_like(ids), torch.arange(3).expand(2, 3), torch.arange(3))
    logits, *_ = captured.graph_module(*arguments, *past)
    with torch.no_grad():
        torch.testing.assert_close(logits, llama.reference(ids).logits)


def test_no_class_of_transformers_is_changed(llama):
    forward = type(llama.reference).forward
    before = dict(transformers.cache_utils.DynamicLayer.__dict__)
    capture_step(llama.reference)
    assert type(llama.reference).forward is forward
    assert dict(transformers.cache_utils.DynamicLayer.__dict__) == before
    assert not any(module._forward_hooks for module in llama.reference.modules())


def test_a_recurrent_model_takes_one_token_and_its_states(tiny):
    captured = capture_step(tiny("mamba").reference)
    assert captured.inputs == ("input_ids", "logits_to_keep", "token_mask")
    assert captured.layers == ()
    assert [state.sizes for state in captured.states] == [(64, 4), (64, 6)] * 2
    ids = next(iter(captured.graph_module.graph.nodes)).meta["val"]
    assert ids.shape[1] == 1
    assert not isinstance(ids.shape[0], int)


def test_adapters_are_the_last_inputs(llama):
    module = "model.layers.1.mlp.down_proj"
    captured = capture_step(llama.reference, adapted_modules=(module,))
    assert captured.adapted == {module: (48, 32)}
    assert captured.inputs[-3:] == (
        "adapter_scales", f"adapter.{module}.a", f"adapter.{module}.b"
    )  # fmt: skip


class FixedLength(transformers.LlamaForCausalLM):
    """Its code makes a number of a size."""

    def forward(self, input_ids, **kwargs):
        int(input_ids.shape[1])
        return super().forward(input_ids, **kwargs)


class Untraceable(transformers.LlamaForCausalLM):
    """Its code reads a tensor's values."""

    def forward(self, input_ids, **kwargs):
        assert input_ids.max() < 97
        return super().forward(input_ids, **kwargs)


@pytest.mark.parametrize(
    "kind, rule, code",
    [
        (FixedLength, "`FixedLength` must have a dynamic token count", "fixed-size"),
        (Untraceable, "`Untraceable` must be traceable.*data-dependent", "capture-failed"),
    ],
    ids=["fixed", "untraceable"],
)
def test_model_that_cannot_be_one_program_is_refused(kind, rule, code):
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    with pytest.raises(CaptureError, match=rule) as caught:
        capture_step(kind(config).eval())
    assert caught.value.code == code


def test_calls_know_their_module_and_the_line_in_its_code(captured, llama):
    origins = node_origins(captured.graph_module.graph)
    by_module = dict(origins.values())
    file = "transformers/models/llama/modeling_llama.py"
    assert by_module["model.layers.1.mlp.down_proj"].startswith(f"{file}:")
    assert by_module["model.layers.0.self_attn"].startswith(f"{file}:")
    assert "lm_head" in by_module
    assert not any(module._forward_pre_hooks for module in llama.reference.modules())


def test_a_trace_reports_its_progress_and_leaves_garbage_collection_as_it_was(llama):
    find_frames = symbolic_shapes.uninteresting_files
    seen, shares = [], []
    handle = llama.reference.register_forward_pre_hook(lambda *_: seen.append(gc.isenabled()))
    try:
        capture_step(llama.reference, on_progress=lambda share, _: shares.append(share))
    finally:
        handle.remove()
    assert seen[-1] is False
    assert gc.isenabled()
    assert symbolic_shapes.uninteresting_files is find_frames
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
