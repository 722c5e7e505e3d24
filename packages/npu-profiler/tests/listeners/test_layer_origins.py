import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.listeners.layer_origins import LayerOrigins
from npu_runtime.observe import Event


def told(program, **origins):
    return Event("instant", "layer_origins", program, 0, args={"origins": origins})


def test_layer_is_found_by_the_call_that_its_name_begins_with():
    origins = LayerOrigins()
    origins.hear(told("graph_0", addmm_3=("layers.0.mlp", "model.py:7")))
    expected = {"module": "layers.0.mlp", "line": "model.py:7"}
    assert origins.find("graph_0", "addmm_3/aten.addmm.default") == expected
    assert origins.find("graph_0", "addmm_3") == expected
    assert origins.find("graph_0", "addmm_33/aten.addmm.default") == {}
    assert origins.find("graph_1", "addmm_3") == {}


def test_only_what_is_known_is_said():
    origins = LayerOrigins()
    origins.hear(told("graph_0", add=("", "model.py:7"), mm=("fc", "")))
    assert origins.find("graph_0", "add") == {"line": "model.py:7"}
    assert origins.find("graph_0", "mm") == {"module": "fc"}


def test_later_program_of_the_name_replaces_the_earlier():
    origins = LayerOrigins()
    origins.hear(told("graph_0", add=("a", "")))
    origins.hear(told("graph_0", mul=("b", "")))
    assert origins.find("graph_0", "add") == {}
