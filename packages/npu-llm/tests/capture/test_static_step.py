"""Steps of fixed sizes: reading the cache, and its memory layout."""

import pytest
import torch

from npu_llm.kv_cache.static_layout import StaticLayout, StepSizes
from npu_llm.models.specialize import read_by
from npu_llm.models.static_programs import write_variant
from npu_llm.precision import PRECISIONS, cache_dtype


def layout_of(model) -> StaticLayout:
    return model._pipeline.programs.layout


def test_past_is_joined_with_new_tokens_once(tiny, sampled_architecture, tmp_path, core):
    model = tiny(sampled_architecture).ours("float32", "static")
    layout = layout_of(model)
    path = write_variant(
        model._entry.model_path, tmp_path / "v", layout.port_shapes(StepSizes(1, 64, 1))
    )
    program = core.read_model(path)
    caches = [node for node in program.get_parameters() if node.get_friendly_name()[:4] == "past"]
    assert len(caches) == sum(len(group.ports) for group in layout.groups)
    for cache in caches:
        assert [node.get_type_name() for node in read_by(cache)].count("Concat") == 1


def test_caches_of_one_shape_are_one_tensor(llama):
    layout = layout_of(llama.ours("float32", "static"))
    keys, values = layout.groups
    assert keys.ports == ("past.0.key", "past.1.key")
    assert (keys.is_transposed, values.is_transposed) == (False, True)
    assert keys.shape(64) == (2, 2, 64, 8)
    assert values.shape(64) == (2, 2, 8, 64)
    assert layout.bytes_per_token == layout.torch_dtype.itemsize * 2 * 2 * 2 * 8
    assert StaticLayout.from_dict(layout.as_dict()) == layout


def test_cache_is_kept_in_what_the_device_computes_in(llama):
    model = llama.ours("bfloat16", "static")
    assert layout_of(model).torch_dtype is cache_dtype(PRECISIONS["bfloat16"])
    ids = torch.tensor([[3, 4, 5, 6]])
    expected = llama.reference(ids).logits
    error = (model(ids).logits - expected).norm() / expected.norm()
    assert error < 0.1


@pytest.mark.parametrize("slot", [0, 5])
def test_slots_are_views_of_the_memory(llama, slot):
    for group in layout_of(llama.ours("float32", "static")).groups:
        memory = torch.zeros(group.shape(16))
        group.slots(memory, slot, slot + 2).fill_(1)
        assert memory.sum() == len(group.ports) * group.heads * 2 * group.size
