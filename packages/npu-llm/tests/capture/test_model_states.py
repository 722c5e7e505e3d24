import pytest
import torch
import transformers

from npu_llm.capture.cache_facts import LayerCache
from npu_llm.capture.functional import make_functional
from npu_llm.capture.model_states import StatesDifferError, find_states
from npu_llm.capture.step import capture_step
from npu_llm.kv_cache.static_layout import TOKEN_MASK


def test_states_and_keys_are_told_apart_by_what_grows(tiny):
    found = find_states(tiny("falcon_h1").reference)
    assert found.layers == (LayerCache(2, 8, 2, 8),) * 2
    assert [state.name for state in found.shapes] == [
        "state.0.conv_states.0", "state.0.recurrent_states.0",
        "state.1.conv_states.0", "state.1.recurrent_states.0",
    ]  # fmt: skip
    assert found.shapes[1].sizes == (8, 8, 6)
    assert found.takes_rows


def test_a_model_whose_code_mixes_rows_takes_one(tiny):
    found = find_states(tiny("rwkv").reference)
    assert not found.takes_rows
    assert [state.sizes for state in found.shapes] == [(32, 2)] * 5


def test_states_that_modules_hold_are_found_and_left_as_they_were():
    config = transformers.RecurrentGemmaConfig(
        vocab_size=97, hidden_size=32, lru_width=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_window_size=8,
        block_types=["recurrent", "attention"],
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.RecurrentGemmaForCausalLM(config).eval()
    found = find_states(model)
    assert len(found.shapes) == 2
    assert len(found.layers) == 1
    assert model.model.layers[0].temporal_block.conv1d_state is None


@pytest.mark.parametrize("name", ["mamba", "lfm2", "rwkv"])
def test_a_captured_step_gives_token_by_token_what_the_model_gives_for_all(tiny, name):
    model = tiny(name).reference
    captured = capture_step(model)
    make_functional(captured.graph_module)
    ids = torch.randint(3, 97, (1, 9), generator=torch.Generator().manual_seed(1))
    kept = [torch.zeros(1, heads, 0, size) for heads, size in captured.caches]
    kept += [torch.zeros(1, *state.sizes) for state in captured.states]
    logits = []
    for place in range(9):
        values = {
            "input_ids": ids[:, place : place + 1],
            "attention_mask": torch.ones(1, place + 1, dtype=torch.int64),
            "position_ids": torch.tensor([[place]]),
            "logits_to_keep": torch.tensor([0]),
            TOKEN_MASK: torch.ones(1, 1, dtype=torch.int64),
        }
        with torch.no_grad():
            found, *kept = captured.graph_module(*(values[one] for one in captured.inputs), *kept)
        logits.append(found)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-4, atol=1e-4)


def test_padding_leaves_a_rows_states_as_they_are(tiny):
    captured = capture_step(tiny("mamba").reference)
    make_functional(captured.graph_module)
    states = [torch.randn(3, *state.sizes) for state in captured.states]
    values = {
        "input_ids": torch.tensor([[5], [6], [7]]),
        "logits_to_keep": torch.tensor([0]),
        TOKEN_MASK: torch.tensor([[1], [0], [1]]),
    }
    with torch.no_grad():
        _, *new = captured.graph_module(*(values[one] for one in captured.inputs), *states)
    for before, after in zip(states, new, strict=True):
        assert torch.equal(before[1], after[1])
        assert not torch.equal(before[0], after[0])


class Growing(torch.nn.Module):
    """Keeps one more tensor after each token."""

    def forward(self, input_ids, state=None, use_cache=True, return_dict=True):
        kept = [*(state or []), torch.zeros(len(input_ids), 4)]
        logits = torch.zeros(*input_ids.shape, 97)
        return transformers.models.rwkv.modeling_rwkv.RwkvCausalLMOutput(logits=logits, state=kept)


def test_a_cache_that_holds_more_after_each_token_is_none():
    with pytest.raises(StatesDifferError, match="more after each token"):
        find_states(Growing())
