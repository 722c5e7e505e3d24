"""Names of the inputs of dynamo's graphs."""

from __future__ import annotations

import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph.kept_origins import keep_origins, kept_origins
from npu_compiler.graph.origins import (
    graph_text,
    keep_source_names,
    kept_source_name,
    node_origins,
    source_names,
)
from npu_compiler.openvino_core import openvino_core

TRACE = """  File "/code/train.py", line 7, in forward
    return self.fc(x)
  File "{torch}/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
"""


@pytest.fixture
def node():
    graph = make_fx(lambda x: x.relu())(torch.ones(2)).graph
    return next(node for node in graph.nodes if node.op == "call_function")


def origin_of(node):
    return node_origins(node.graph).get(node.name)


def test_line_is_the_innermost_outside_of_torch(node, monkeypatch):
    monkeypatch.setattr("sys.path", ["", "/code", "/elsewhere"])
    node.meta["stack_trace"] = TRACE.format(torch=torch.__path__[0])
    assert origin_of(node) == ("", "train.py:7")


def test_file_that_is_on_no_path_has_its_whole_name(node, monkeypatch):
    monkeypatch.setattr("sys.path", ["/elsewhere"])
    node.meta["stack_trace"] = TRACE.format(torch=torch.__path__[0])
    assert origin_of(node) == ("", "/code/train.py:7")


@pytest.mark.parametrize(
    "written, path",
    [
        ("L['self'].layers[3].mlp", "layers.3.mlp"),
        ("L['self']._modules['layers']._modules['3'].mlp", "layers.3.mlp"),
        ("L['model']._orig_mod.fc", "fc"),
        ("layers.3.mlp", "layers.3.mlp"),
        ("L['self']", "Linear"),
        ("", "Linear"),
    ],
)
def test_module_is_a_path_in_its_root_or_the_roots_class(node, written, path):
    node.meta["nn_module_stack"] = {
        "outer": ("L['self'].layers", torch.nn.ModuleList),
        "inner": (written, torch.nn.Linear),
    }
    assert origin_of(node) == (path, "")


def test_class_of_a_root_may_be_given_by_its_name(node):
    node.meta["nn_module_stack"] = {"": ("", "transformers.models.LlamaForCausalLM")}
    assert origin_of(node) == ("LlamaForCausalLM", "")


def test_call_without_an_origin_is_not_among_them(node):
    assert isinstance(node, fx.Node)
    assert node_origins(node.graph) == {}


def test_a_model_on_disk_keeps_the_origins_of_its_calls(tmp_path):
    port = ops.parameter([1], ov.Type.f32)
    model = ov.Model([ops.relu(port)], [port])
    assert kept_origins(model) == {}
    keep_origins(model, {"relu": ("blocks.0", 'my "model".py:7')})
    ov.save_model(model, tmp_path / "model.xml")
    read = openvino_core().read_model(tmp_path / "model.xml")
    assert kept_origins(read) == {"relu": ("blocks.0", 'my "model".py:7')}


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


def test_lines_show_dtypes_sizes_strides_and_arguments():
    graph = make_fx(lambda x, y: torch.cat([x.t(), y], 1).sum(1, dtype=torch.float64),
                    tracing_mode="fake")(torch.ones(2, 3), torch.ones(3, 1)).graph  # fmt: skip
    assert graph_text(graph).splitlines() == [
        "x_1: f32[2, 3] cpu = input",
        "y_1: f32[3, 1] cpu = input",
        "t: f32[3, 2] (1, 3) cpu = aten.t.default(x_1)",
        "cat: f32[3, 3] cpu = aten.cat.default([t, y_1], 1)",
        "sum_1: f64[3] cpu = aten.sum.dim_IntList(cat, [1], dtype=torch.float64)",
        "return sum_1",
    ]


def test_text_of_symbolic_sizes_names_them():
    graph = make_fx(lambda x: x.sin(), tracing_mode="symbolic")(torch.ones(5, 3)).graph
    assert "f32[s" in graph_text(graph)
