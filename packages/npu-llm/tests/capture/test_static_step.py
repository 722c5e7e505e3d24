"""What a step of fixed sizes does with its cache: reads it where it lies, and copies none of it."""

import pytest
import torch
import transformers

from npu_llm.precision import PRECISIONS, cache_dtype
from npu_llm.steps.static_layout import StaticLayout, StepSizes
from npu_llm.steps.static_programs import write_variant

# Their scores are bent between the two products, come with a bias that no mask holds, or are of
# keys that are computed from latent ones.
JOINED = {
    "bloom",
    "gemma2",
    "minicpm3",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
}
if transformers.__version__ < "5":  # which computes Gemma 2's scores unbent
    JOINED.remove("gemma2")


def layout_of(model) -> StaticLayout:
    return model._pipeline.programs.layout


def readers(node) -> list:
    return [reader.get_node() for output in node.outputs() for reader in output.get_target_inputs()]


def test_past_is_read_by_products_alone(tiny, sampled_architecture, tmp_path, core):
    model = tiny(sampled_architecture).ours("float32", "static")
    layout = layout_of(model)
    path = write_variant(
        model._entry.model_path, tmp_path / "v", layout.port_shapes(StepSizes(1, 64, 1))
    )
    program = core.read_model(path)
    caches = [node for node in program.get_parameters() if node.get_friendly_name()[:4] == "past"]
    assert len(caches) == sum(len(group.ports) for group in layout.groups)
    reading = [r for cache in caches for r in readers(cache) if r.get_type_name() != "ShapeOf"]
    if layout.dtype == "float16":  # an NPU's: what computes in float32 reads them converted
        assert {reader.get_type_name() for reader in reading} == {"Convert"}
        reading = [r for converted in reading for r in readers(converted)]
    kinds = {reader.get_type_name() for reader in reading}
    assert kinds == ({"Concat"} if sampled_architecture in JOINED else {"MatMul"})


def test_no_layer_of_a_run_moves_the_cache(llama, tmp_path, core):
    """In the device's own trace, what reads a cache are products; nothing else has its size."""
    model = llama.ours("float32", "static")
    path = write_variant(
        model._entry.model_path, tmp_path / "v", layout_of(model).port_shapes(StepSizes(1, 64, 1))
    )
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERF_COUNT": "YES"}
    running = core.compile_model(core.read_model(path), "CPU", options).get_runtime_model()
    caches = [node for node in running.get_ops() if node.get_friendly_name()[:4] == "past"]
    assert len(caches) == 4
    for cache in caches:
        for reader in readers(cache):
            assert reader.get_rt_info()["layerType"].astype(str) == "MatMul"


def test_caches_of_one_shape_are_one_tensor(llama):
    layout = layout_of(llama.ours("float32", "static"))
    keys, values = layout.groups
    assert keys.ports == ("past.0.key", "past.1.key")
    assert (keys.is_transposed, values.is_transposed) == (True, False)
    assert keys.shape(64) == (2, 2, 8, 64)
    assert values.shape(64) == (2, 2, 64, 8)
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
