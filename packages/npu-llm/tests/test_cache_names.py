"""Both names of the cache argument, with any transformers release."""

import pytest
import torch

from npu_llm.cache_names import CACHE
from npu_llm.errors import OptionError


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_model_takes_either_name(llama, logit_tolerance, name):
    model = llama.ours()
    ids = torch.tensor([[3, 5, 7, 9]])
    first = model(ids[:, :3])
    held = getattr(first, CACHE)
    found = model(ids[:, 3:], **{name: held})
    assert getattr(found, CACHE) is held
    torch.testing.assert_close(
        found.logits[:, -1], model(ids).logits[:, -1], rtol=0, atol=logit_tolerance
    )
    again = model.generate(ids, max_new_tokens=3, do_sample=False, **{name: model.new_cache()})
    assert again.tolist() == model.generate(ids, max_new_tokens=3, do_sample=False).tolist()


def test_two_that_differ_are_refused(llama):
    model, ids = llama.ours(), torch.tensor([[3, 5, 7]])
    caches = {"cache": model.new_cache(), "past_key_values": model.new_cache()}
    for call in (model, model.generate):
        with pytest.raises(OptionError) as caught:
            call(ids, **caches)
        assert caught.value.code == "two-caches"
