import pytest
import torch
from torch import fx

from npu_llm.capture.position_remapping import remap_positions
from npu_llm.capture.step import capture_step
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.kv_cache.static_layout import KEY_POSITIONS


def test_every_architecture_can_have_holes_in_its_cache(tiny, sampled_architecture):
    architecture = sampled_architecture
    model, weights = load_model(find_source(tiny(architecture).folder))
    captured = capture_step(model)
    before = list(captured.graph_module.graph.nodes)
    windowed = architecture in ("mistral", "gemma2", "gemma3")
    moved, relocation = remap_positions(captured, windowed=windowed, weights=weights)
    # Bloom's bias counts along the mask, so that only a mask by slot serves.
    assert relocation == ("mask" if architecture == "bloom" else "positions")
    assert (KEY_POSITIONS in moved.inputs) == (relocation == "positions")
    assert list(captured.graph_module.graph.nodes) == before


def test_positions_come_behind_the_other_inputs(llama):
    moved, _ = remap_positions(capture_step(llama.reference), windowed=False)
    placeholders = [node for node in moved.graph_module.graph.nodes if node.op == "placeholder"]
    assert moved.inputs[-1] == KEY_POSITIONS
    shapes = [tuple(map(str, node.meta["val"].shape)) for node in placeholders]
    assert len(shapes[len(moved.inputs) - 1]) == 1
    assert len(shapes[len(moved.inputs)]) == 4


@pytest.mark.parametrize("windowed", [False, True])
def test_a_step_that_counts_places_otherwise_is_found_out(llama, windowed):
    captured = capture_step(llama.reference)
    graph: fx.Graph = captured.graph_module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    key = [node for node in graph.nodes if node.op == "placeholder"][len(captured.inputs)]
    logits = output.args[0][0]
    with graph.inserting_before(output):
        places = graph.call_function(torch.ops.aten.sym_size.int, (key, 2))
        scaled = graph.call_function(torch.ops.aten.mul.Tensor, (logits, places))
    places.meta["val"] = key.meta["val"].shape[2]
    scaled.meta["val"] = logits.meta["val"]
    output.args = ((scaled, *output.args[0][1:]),)
    captured.graph_module.recompile()
    moved, relocation = remap_positions(captured, windowed=windowed)
    assert relocation is None
    assert moved is captured
