"""Captured graphs with weights or tensors that change after the capture."""

import gc

import pytest
import torch

from npu_runtime import FrozenTensors, InputError, load_program
from npu_runtime.npu.graphs import outside_capture

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def add_one(save_model, add_one_model):
    return load_program(save_model(add_one_model), name="add_one", options=F32)


@pytest.fixture
def captured(add_one):
    """A graph with a program declared to hold two weights, the weights, input and result."""
    weights = [torch.ones(3, device="npu"), torch.ones(2, 2)]
    frozen = FrozenTensors([0, 1], weights, ["fc.weight", "fc.bias"])
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        assert frozen.is_current(weights)
        result = add_one.run([x])[0]
    return graph, weights, x, result


def assert_refused(graph, *words):
    with pytest.raises(InputError) as caught:
        graph.replay()
    assert caught.value.code == "capture-stale"
    for word in words:
        assert word in str(caught.value)


def test_a_replay_of_unchanged_weights_runs(captured):
    graph, _, x, result = captured
    x.fill_(3)
    graph.replay()
    assert result.cpu().tolist() == [4.0] * 64


def test_a_weight_that_was_written_is_named_and_nothing_runs(captured):
    graph, weights, x, result = captured
    before = result.cpu()
    x.fill_(3)
    weights[0].mul_(2)
    assert_refused(graph, "a change of fc.weight.", 'weights="follow"')
    assert torch.equal(result.cpu(), before)


def test_a_view_that_was_written_counts(captured):
    graph, weights, _, _ = captured
    weights[1].view(-1)[1:].zero_()
    assert_refused(graph, "fc.bias")


def test_several_changes_are_counted(captured):
    graph, weights, _, _ = captured
    for weight in weights:
        weight.add_(1)
    assert_refused(graph, "fc.weight and 1 more")


def test_another_tensor_in_data_is_a_change(captured):
    graph, weights, _, _ = captured
    weights[0].data = torch.ones(3, device="npu")
    assert_refused(graph, "fc.weight")


def test_memory_that_went_and_came_back_is_a_change(add_one):
    parameter = torch.nn.Parameter(torch.ones(4096))
    frozen, graph = FrozenTensors([0], [parameter], ["w"]), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        frozen.is_current([parameter])
        add_one.run([torch.empty(64, device="npu")])
    del frozen  # and with it the owner of the memory
    address = parameter.data_ptr()
    parameter.data = torch.zeros(1)
    others = [torch.zeros(4096) for _ in range(16)]
    parameter.data = next((one for one in others if one.data_ptr() == address), others[0])
    assert_refused(graph, "w")


def test_weights_that_are_gone_cannot_have_changed(captured):
    graph, weights, _, result = captured
    weights.clear()
    gc.collect()
    graph.replay()
    assert result.cpu().tolist() == [1.0] * 64


def test_a_new_capture_holds_the_new_weights(captured, add_one):
    graph, weights, x, _ = captured
    weights[0].mul_(2)
    graph.reset()
    frozen = FrozenTensors([0, 1], weights)
    with torch.npu.graph(graph):
        frozen.is_current(weights)
        add_one.run([x])
    graph.replay()
    weights[1].mul_(2)
    assert_refused(graph, "a change of input 1.")


def test_a_write_that_torch_does_not_count_is_not_seen(captured):
    graph, weights, _, result = captured
    weights[0].data.mul_(2)  # as documented
    graph.replay()
    assert result.cpu().tolist() == [1.0] * 64


def test_other_memory_of_an_input_is_refused(captured):
    graph, _, x, _ = captured
    x.data = torch.ones(64, device="npu")
    assert_refused(graph, "other memory for input x of program add_one")


def test_other_memory_of_a_given_output_is_refused(add_one):
    x, y = torch.zeros(64, device="npu"), torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        add_one.run([x], outputs=[y])
    y.data = torch.zeros(64, device="npu")
    assert_refused(graph, "other memory for output", "of program add_one")


def test_a_graph_that_follows_reads_other_memory(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph(weights="follow")
    with torch.npu.graph(graph):
        result = add_one.run([x])[0]
    for value in (5.0, 7.0):
        x.data = torch.full((64,), value, device="npu")
        graph.replay()
        assert result.cpu().tolist() == [value + 1] * 64


def test_memory_of_another_shape_is_refused_by_a_graph_that_follows(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph(weights="follow")
    with torch.npu.graph(graph):
        add_one.run([x])
    x.data = torch.zeros(63, device="npu")
    with pytest.raises(InputError) as caught:
        graph.replay()
    assert caught.value.code == "program-input"


def test_nothing_frozen_is_current_for_a_graph_that_follows(add_one):
    weight = torch.ones(3)
    frozen = FrozenTensors([0], [weight])
    graph = torch.npu.NPUGraph(weights="follow")
    with torch.npu.graph(graph):
        assert not frozen.is_current([weight])
        add_one.run([torch.empty(64, device="npu")])
    assert frozen.is_current([weight])
    weight.add_(1)
    graph.replay()


def test_work_outside_of_a_capture_is_not_replayed(add_one):
    x, y = torch.zeros(64, device="npu"), torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        with outside_capture():
            assert not torch.npu.is_current_stream_capturing()
            y.add_(1)  # a host kernel, which a capture refuses
            add_one.run([x], outputs=[y])
        result = add_one.run([x])[0]
    assert len(graph) == 1
    y.zero_()
    graph.replay()
    assert (result.cpu() == 1).all()
    assert (y.cpu() == 0).all()


def test_outside_of_a_capture_there_is_nothing_to_leave():
    with outside_capture():
        assert (torch.ones(2, device="npu") + 1).sum().item() == 4


def test_another_word_for_weights_is_refused():
    with pytest.raises(InputError, match='"refuse" or "follow", got \'keep\'') as caught:
        torch.npu.NPUGraph(weights="keep")
    assert caught.value.code == "capture-weights"
    with pytest.raises(InputError, match="make_graphed_callables") as caught:
        torch.npu.make_graphed_callables(torch.nn.Linear(2, 2), (), weights="keep")
    assert caught.value.code == "capture-weights"


def test_names_are_one_for_each_tensor():
    with pytest.raises(InputError, match="1 names and 2 tensors") as caught:
        FrozenTensors([0, 1], [torch.ones(1), torch.ones(1)], ["a"])
    assert caught.value.code == "frozen-positions"
