"""What the inputs of dynamo's graphs are called."""

from __future__ import annotations

import torch
from torch import fx, nn

from npu_compiler.graph.source_names import keep_source_names, kept_source_name, source_names

BLOCK = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def names_of(function, *arguments):
    found = []

    def backend(graph_module, inputs):
        found.append(source_names(graph_module))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*arguments)
    return set(found[0])


def test_weights_of_the_module_have_their_names_in_it():
    assert names_of(BLOCK, torch.ones(1, 2)) >= {"0.weight", "0.bias"}


def test_weights_of_a_module_that_a_function_calls_begin_with_its_name():
    assert names_of(lambda x: BLOCK(x), torch.ones(1, 2)) == {"BLOCK.0.weight", "BLOCK.0.bias", "x"}


def test_other_values_are_called_as_the_program_writes_them():
    assert names_of(lambda x: x["a"] + 1, {"a": torch.ones(2)}) == {"x['a']"}


def test_an_input_that_dynamo_did_not_make_has_its_nodes_name():
    assert source_names(fx.symbolic_trace(lambda given: given + 1)) == ("given",)


def test_names_go_with_the_descriptions_of_the_inputs():
    graph = fx.Graph()
    first, second, third = (graph.placeholder(name) for name in ("a", "b", "c"))
    first.meta["desc"] = torch._functorch._aot_autograd.descriptors.PlainAOTInput(1)
    second.meta["desc"] = torch._functorch._aot_autograd.descriptors.PlainAOTInput(7)
    keep_source_names(graph, ("x", "fc.weight"))
    assert [kept_source_name(node) for node in (first, second, third)] == ["fc.weight", "b", "c"]
