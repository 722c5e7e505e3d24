import pytest
import torch
from torch import fx

from npu_llm.errors import CaptureError
from npu_llm.multi_part.tracing import Example, TracedPart
from npu_llm.vision_language.parts import describe_part


def part_of(run, **tensors):
    """A traced part, its first size free to vary."""
    graph_module = fx.symbolic_trace(run)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for node, tensor in zip(placeholders, tensors.values(), strict=True):
        node.meta["val"] = tensor
    (output,) = graph_module.graph.find_nodes(op="output")
    results = run(*tensors.values())
    for node, result in zip(output.args[0], results, strict=True):
        node.meta["val"] = result
    return TracedPart("eyes", graph_module, tuple(tensors), ("out",))


def test_images_are_read_one_by_one_and_tokens_in_pieces(family):
    model = family("Llava")
    images = torch.zeros(5, 3, 4)
    part = part_of(lambda pixels: (pixels + 1,), pixels=images)
    found = describe_part(model, part, {"pixels": Example(images, (0,))})
    assert found["ports"] == {"pixels": [-1, 3, 4]}
    assert (found["leading"], found["dtypes"]) == (1, {"pixels": "float32"})
    ids = torch.zeros(5, 7, dtype=torch.int64)
    part = part_of(lambda ids: (ids * 2,), ids=ids)
    found = describe_part(model, part, {"ids": Example(ids, (0, 1))})
    assert (found["ports"], found["leading"]) == ({"ids": [1, -1]}, 2)


@pytest.mark.parametrize("dims", [(1,), (0, 1, 2)])
def test_a_part_that_reads_otherwise_is_refused(family, dims):
    images = torch.zeros(5, 3, 4)
    part = part_of(lambda pixels: (pixels + 1,), pixels=images)
    with pytest.raises(
        CaptureError, match=r"must have a eyes .* pixels with the dynamic sizes"
    ) as caught:
        describe_part(family("Llava"), part, {"pixels": Example(images, dims)})
    assert caught.value.code == "static-parts"


def test_a_part_that_joins_its_images_is_refused(family):
    images = torch.zeros(5, 3, 4)
    part = part_of(lambda pixels: (pixels.flatten(0, 1),), pixels=images)
    with pytest.raises(CaptureError) as caught:
        describe_part(family("Llava"), part, {"pixels": Example(images, (0,))})
    assert caught.value.code == "static-parts"
