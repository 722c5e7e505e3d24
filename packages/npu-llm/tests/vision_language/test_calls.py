import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from npu_llm.vision_language.calls import call_again, outline, read_call


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
