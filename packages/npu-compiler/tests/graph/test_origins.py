import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph.kept_origins import keep_origins, kept_origins
from npu_compiler.graph.origins import node_origins
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
