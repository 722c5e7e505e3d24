import threading
from types import SimpleNamespace

import pytest
import torch

from npu_ops import _C
from npu_ops.kernel_programs.execution import StageLayers
from npu_ops.kernel_programs.program import Append, Columns, Keep, Linear
from npu_ops.kernel_programs.weights import PackedLinear
from npu_runtime import observe

X, Y = Columns(0, 0, 64), Columns(1, 0, 32)
PROGRAM = SimpleNamespace(
    instructions=(
        Linear(input=X, out=Y, weight="gate_up", gated=True),
        Append(keys=X, values=X, layer=0),
        Keep(input=Y, out=Columns(2, 0, 32)),
        Linear(input=Columns(2, 0, 32), out=Columns(3, 0, 16), weight="head"),
    ),
    modules=("model.mlp", "model.self_attn", "", "lm_head"),
)
WEIGHTS = {
    "gate_up": PackedLinear("bfloat16", 64, 64, torch.zeros(8, dtype=torch.uint8)),
    "head": PackedLinear(
        "int4", 16, 32, torch.zeros(8, dtype=torch.uint8),
        torch.zeros(1, 1, 16, dtype=torch.float16), torch.zeros(1, 1, 16, dtype=torch.uint8), 32,
    ),
}  # fmt: skip


@pytest.fixture
def heard():
    events = []
    observe.add_listener(events.extend)
    yield events
    observe.remove_listener(events.extend)


def test_layers_tell_their_module_and_products_what_they_read_and_wrote(heard):
    layers = StageLayers(PROGRAM, [(at, at) for at in range(4)], WEIGHTS, kernel_set="avx2")
    assert layers.names == ["Linear model.mlp", "Append model.self_attn", "Keep", "Linear lm_head"]
    layers.emit([5, 6, 7, 8], 100, rows=10, kept=2, device_index=0, stream=0)
    spans = {event.name: event for event in heard if event.category == "layer"}
    assert list(spans) == layers.names
    assert [one.start_ns for one in spans.values()] == [100, 105, 111, 118]
    assert spans["Linear model.mlp"].args["module"] == "model.mlp"
    assert spans["Linear model.mlp"].args["implementation"] == "avx2_bf16"
    assert spans["Append model.self_attn"].args["type"] == "Append"
    told = {event.name: event.args for event in heard if event.category == "layer_shapes"}
    assert told["Linear model.mlp"]["inputs"] == "f32[10,64] bf16[64,64]"
    assert told["Linear model.mlp"]["outputs"] == "f32[10,32]"
    assert told["Linear lm_head"]["inputs"] == "f32[2,32] u4[16,32] f16[16] u8[16]"
    assert told["Linear lm_head"]["outputs"] == "f32[2,16]"
    assert told.keys() == {"Linear model.mlp", "Linear lm_head"}


def test_products_of_one_stage_are_one_layer(heard):
    program = SimpleNamespace(instructions=PROGRAM.instructions[:1] * 2, modules=())
    layers = StageLayers(program, [(0, 1)], WEIGHTS, kernel_set="avx2")
    assert layers.names == ["Linear+Linear"]
    layers.emit([5], 100, rows=1, kept=1, device_index=0, stream=0)
    shapes, span = heard
    assert span.args["type"] == "Linear"
    assert shapes.args["inputs"] == "f32[1,64] bf16[64,64] bf16[64,64]"
    assert shapes.args["outputs"] == "f32[1,32] f32[1,32]"


def test_each_worker_tells_what_it_worked_and_waited(heard, monkeypatch):
    monkeypatch.setattr(_C, "worker_threads", lambda: [77])
    program = SimpleNamespace(instructions=PROGRAM.instructions[:2], modules=())
    layers = StageLayers(program, [(0, 0), (1, 1)], WEIGHTS, kernel_set="avx2")
    layers.emit([5000, 2000], 100, [[5000, 2000], [4000, 0]], rows=1, kept=1)
    workers = [event for event in heard if event.category == "worker"]
    main = threading.get_native_id()
    told = [(one.name, one.thread_id, one.start_ns, one.duration_ns) for one in workers]
    assert told == [
        ("Linear", main, 100, 5000), ("Linear", 77, 100, 4000), ("Append", main, 5100, 2000),
    ]  # fmt: skip
    assert [one.args["wait_us"] for one in workers] == [0, 1, 0]
