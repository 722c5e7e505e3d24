import torch
from safetensors.torch import save_file

from npu_llm.kv_cache.static_layout import EmbeddingTable, StaticLayout
from npu_llm.kv_cache.step_weights import load_step_weights

LAYOUT = StaticLayout((), (), "float16", tables={"embedding.0": EmbeddingTable("weight.1", 4)})


def test_weights_are_ports_and_rows_are_looked_up(tmp_path):
    tensors = {
        "weight.0": torch.arange(6, dtype=torch.uint8).view(2, 3),
        "weight.1": torch.arange(-8, 4, dtype=torch.int8).view(3, 4),
        "weight.1.scale": torch.tensor([1.0, 0.5, 2.0]),
    }
    save_file(tensors, tmp_path / "w")
    weights = load_step_weights(tmp_path / "w", LAYOUT)
    inputs = weights.inputs({"input_ids": torch.tensor([[2, 0]])})
    assert set(inputs) == {"weight.0", "weight.1", "embedding.0"}
    assert torch.equal(inputs["weight.0"], tensors["weight.0"])
    assert inputs["embedding.0"].dtype is torch.float16
    assert inputs["embedding.0"].tolist() == [[[0, 2, 4, 6], [-8, -7, -6, -5]]]


def test_weights_are_pinned_whole_pages_apart(tmp_path):
    save_file({f"weight.{n}": torch.ones(3, 5, dtype=torch.int8) for n in (0, 1)}, tmp_path / "w")
    first, second = load_step_weights(tmp_path / "w", LAYOUT).ports.values()
    assert first.is_pinned()
    assert second.data_ptr() - first.data_ptr() == 4096


def test_programs_with_constant_weights_take_nothing(tmp_path):
    assert load_step_weights(tmp_path / "absent", LAYOUT).inputs({}) == {}
