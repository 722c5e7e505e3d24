import pytest
import torch
import transformers
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPooling

from npu_llm.cache_names import CACHE
from npu_llm.errors import CaptureError
from npu_llm.vision_language.submodules import (
    GRID,
    call_again,
    find_parts,
    outer_tensors,
    outline,
    packed_attention,
    read_call,
    with_positions,
)


def test_parts_are_what_the_model_calls_and_the_rest_is_glue(family):
    model = family("LlavaOnevision")
    names = ["vision_tower", "multi_modal_projector", "embed", "language", "head"]
    assert list(find_parts(model)) == names
    assert [name for name, _ in outer_tensors(model)] == ["model.image_newline"]


def test_a_model_without_such_parts_is_refused():
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(CaptureError, match="`BertModel` must have a language model") as caught:
        find_parts(transformers.BertModel(config))
    assert caught.value.code == "unknown-encoder"


class Part(torch.nn.Module):
    def forward(self, images, masks=None, layer=None, **kwargs):
        return images


def test_a_call_is_tensors_and_what_else_has_an_effect():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    call = read_call(
        Part(),
        (one,),
        {
            "masks": {"full": two, "sliding": three},
            "layer": (1, 2),
            "output_hidden_states": -2,
            "aspect": "handed on",
            "use_cache": True,
        },
    )
    assert {name: len(tensor) for name, tensor in call.tensors.items()} == {
        "images": 1, "masks.full": 2, "masks.sliding": 3,
    }  # fmt: skip
    assert call.choices == {"layer": [1, 2], "output_hidden_states": -2}
    again = call_again(call.tensors)
    assert again["images"] is one
    assert again["masks"] == {"full": two, "sliding": three}


def test_a_result_is_made_again_of_other_tensors():
    states = (None, torch.zeros(2))
    result = BaseModelOutputWithPooling(last_hidden_state=torch.zeros(1), hidden_states=states)
    made, tensors = outline(result)
    again = made.make([tensor + 5 for tensor in tensors])
    assert isinstance(again, BaseModelOutputWithPooling)
    assert again.last_hidden_state.tolist() == [5]
    assert again.hidden_states[0] is None
    assert again.hidden_states[1].tolist() == [5, 5]
    alone, _ = outline(torch.zeros(1))
    assert alone.make([torch.ones(1)]).tolist() == [1]


pytestmark = pytest.mark.skipif(
    CACHE != "cache", reason="transformers before 5.24 lets such encoders compute all themselves"
)


def test_sequences_that_are_packed_attend_within_themselves(family):
    visual = family("Qwen2VL").model.visual
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, 10, 6, generator=generator) for _ in range(3))
    starts = torch.tensor([0, 3, 9, 10])
    before = visual.config._attn_implementation
    with packed_attention(visual, {GRID: torch.ones(1, 3)}) as beside:
        attend = AttentionInterface()[visual.config._attn_implementation]
        found, weights = attend(
            visual, query, key, value, None, scaling=0.5, cu_seq_lens_q=starts, max_length_q=6
        )
    assert beside == {"max_seqlen": 1}
    assert weights is None
    assert visual.config._attn_implementation == before
    pieces = [
        torch.nn.functional.scaled_dot_product_attention(
            *(one[:, :, start:end] for one in (query, key, value)), scale=0.5
        )
        for start, end in ((0, 3), (3, 9), (9, 10))
    ]
    torch.testing.assert_close(found, torch.cat(pieces, 2).transpose(1, 2))


def test_a_grid_says_where_windows_and_patches_lie(family):
    visual = family("Qwen2_5_VL").model.visual
    given = {"hidden_states": torch.zeros(24, 96), GRID: torch.tensor([[1, 4, 6]])}
    found = with_positions(visual, given)
    added = {"cu_seqlens", "position_ids", "window_index", "cu_window_seqlens"}
    assert found.keys() == given.keys() | added
    assert found["cu_seqlens"].tolist() == [0, 24]
    assert with_positions(visual, {"pixel_values": given["hidden_states"]}).keys() == {
        "pixel_values"
    }
