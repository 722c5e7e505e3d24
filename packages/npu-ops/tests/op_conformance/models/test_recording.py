import json

import pytest
import torch

from npu_ops.errors import ConformanceError
from npu_ops.op_conformance import Outcome
from npu_ops.op_conformance.models import RECORDED, model_cases, model_names
from npu_ops.op_conformance.models.recording import Recording, known_networks, record_network
from npu_ops.op_conformance.record import main
from npu_ops.op_conformance.running.cases import case_cells

TINY = {
    "model": "BertModel",
    "options": {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 20,
    },
    "inputs": {"input_ids": "[2,4] int64 0..19"},
}

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its configurations


def recorded(*names):
    recording = Recording()
    for name in names:
        record_network(recording, name, TINY)
    return recording


def test_calls_are_kept_with_shapes_dtypes_and_ranges():
    calls = json.loads(recorded("tiny").text())["calls"]
    embeddings = [arguments for _, arguments, _ in calls["aten.embedding.default"]]
    assert any(call["weight"] == "[20,16]" for call in embeddings)
    indices = next(call["indices"] for call in embeddings if call["weight"] == "[20,16]")
    assert indices.startswith("[2,4] int64 ")
    assert "aten.native_layer_norm_backward.default" in calls
    assert "aten.view.default" not in calls


def test_a_call_of_two_networks_is_kept_once():
    one, two = recorded("first"), recorded("first", "second")
    assert {op: set(calls) for op, calls in one.calls.items()} == {
        op: set(calls) for op, calls in two.calls.items()
    }
    assert all(callers == [0, 1] for calls in two.calls.values() for callers in calls.values())


def test_a_class_that_transformers_has_not_is_an_error():
    with pytest.raises(ConformanceError, match="got 'NoModel'") as error:
        record_network(Recording(), "mine", TINY | {"model": "NoModel"})
    assert error.value.code == "network-unknown"


def test_the_command_writes_a_file(tmp_path, capsys):
    file = tmp_path / "calls.json"
    assert main(["electra", "-o", str(file)]) == 0
    assert json.loads(file.read_text())["networks"] == ["electra"]
    assert "1 networks" in capsys.readouterr().out


def test_the_recorded_calls_are_of_all_known_networks_and_small():
    assert list(model_names()) == sorted(known_networks())
    assert len(model_names()) >= 40
    assert RECORDED.stat().st_size < 2**20


def sample():
    """Every sixtieth call that is small."""
    cases = [case for case in model_cases().values() if len(json.dumps(case.arguments)) < 400]
    return [
        case
        for case in cases[::60]
        if sum(leaf.numel() for leaf in tensors_of(case.make_arguments())) < 200_000
    ]


def tensors_of(arguments):
    leaves = torch.utils._pytree.tree_leaves(arguments)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("case", sample(), ids=lambda case: case.id)
def test_npu_equals_the_cpu(case):
    for cell in case_cells(case):
        assert cell.outcome is Outcome.PASSED, cell
