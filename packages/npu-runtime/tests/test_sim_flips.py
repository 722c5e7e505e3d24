"""Wrong values that the simulated device is asked for; a process with NPU_DRIVER=sim per test."""

import pytest

from npu_runtime import InputError, sim
from npu_runtime.config import config

pytestmark = pytest.mark.driver("openvino", "its processes use sim already")

SETUP = """
import os, tempfile
import numpy as np, openvino as ov, torch
import npu_runtime
from npu_runtime import sim
from openvino import opset13 as ops

def load(name, build, *shapes, dtype=np.float32):
    parameters = [ops.parameter(list(shape), dtype, name=f"p{i}") for i, shape in enumerate(shapes)]
    path = os.path.join(tempfile.mkdtemp(), "m.xml")
    ov.save_model(ov.Model(build(*parameters), parameters, name), path, compress_to_fp16=False)
    return npu_runtime.load_program(path, name=name, options={"INFERENCE_PRECISION_HINT": "f32"})

one = ops.constant(np.float32(1))
two = load("two", lambda x: [ops.add(x, one), ops.subtract(x, one)], [64])
other = load("other", lambda x: [ops.multiply(x, x)], [64])
x = torch.arange(64.0).to("npu")
right = [x.cpu() + 1, x.cpu() - 1]

def wrong(results):
    "Output, element and value of each element that differs."
    return [
        (i, int(at), float(got.cpu()[at]))
        for i, (got, want) in enumerate(zip(results, right))
        for at in (got.cpu() != want).nonzero().flatten()
    ]
"""


@pytest.fixture
def run_sim(run_python):
    """Runs code on the simulated device, after SETUP, and returns its output."""

    def run(code: str) -> list[str]:
        done = run_python(SETUP + code, NPU_DRIVER="sim")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_the_report_names_each_wrong_run_and_no_other(run_sim):
    printed = run_sim(
        "with sim.flips(0.3, seed=5) as made:\n"
        "    found = [wrong(two.run([x])) for _ in range(50)]\n"
        "told = {flip.run: [(flip.output, flip.element, flip.after)] for flip in made.hits}\n"
        "print({i: w for i, w in enumerate(found) if w} == told, made.runs, 5 < len(told) < 25)\n"
        "print({flip.program for flip in made.hits}, {flip.output for flip in made.hits})\n"
        "print(all(flip.before == right[flip.output][flip.element] for flip in made.hits))\n"
    )
    assert printed == ["True 50 True", "{'two'} {0, 1}", "True"]


def test_nothing_is_wrong_before_after_and_with_probability_0(run_sim):
    printed = run_sim(
        "print(wrong(two.run([x])))\n"
        "with sim.flips(0) as made:\n    print(wrong(two.run([x])))\n"
        "print(made.runs, made.hits)\n"
        "with sim.flips(1) as made:\n    print(len(wrong(two.run([x]))))\n"
        "print(wrong(two.run([x])), made.runs, len(made.hits))\n"
    )
    assert printed == ["[]", "[]", "1 ()", "1", "[] 1 1"]


def test_one_seed_hits_the_same_values_and_another_other_ones(run_sim):
    printed = run_sim(
        "def hits(seed):\n"
        "    with sim.flips(0.5, seed=seed) as made:\n"
        "        for _ in range(20): two.run([x])\n"
        "        torch.npu.synchronize()\n"
        "    return made.hits\n"
        "print(hits(1) == hits(1), hits(1) == hits(2))\n"
    )
    assert printed == ["True False"]


def test_only_programs_that_match_are_hit(run_sim):
    printed = run_sim(
        "with sim.flips(1, programs='tw*') as made:\n"
        "    print((other.run([x])[0].cpu() == x.cpu() * x.cpu()).all().item())\n"
        "    print(len(wrong(two.run([x]))), made.runs)\n"
    )
    assert printed == ["True", "1 1"]


def test_the_default_bit_is_seen_in_any_value(run_sim):
    printed = run_sim(
        "same = load('same', lambda x: [ops.negative(x)], [6])\n"
        "values = torch.tensor([0.0, 1e-30, 0.5, -1.0, 3.0, 1e30])\n"
        "with sim.flips(1, seed=3) as made:\n"
        "    for _ in range(40): same.run([values.to('npu')])[0].cpu()\n"
        "apart = [abs(f.before - f.after) / max(1, abs(f.before)) for f in made.hits]\n"
        "elements, bits = {f.element for f in made.hits}, {f.bit for f in made.hits}\n"
        "print(len(elements), min(apart) > 0.99, bits)\n"
    )
    assert printed == ["6 True {30}"]


def test_a_bit_that_is_named_is_the_one_flipped(run_sim):
    printed = run_sim(
        "with sim.flips(1, bit=0) as made:\n    print(len(wrong(two.run([x]))))\n"
        "f = made.hits[0]; print(f.bit, abs(f.before - f.after) < 1e-5)\n"
    )
    assert printed == ["1", "0 True"]


def test_each_dtype_is_hit_in_a_bit_that_it_has(run_sim):
    printed = run_sim(
        "build = lambda x: [ops.reshape(x, ops.constant(np.array([4, 2])), False)]\n"
        "for name in ('int32', 'int64', 'uint8', 'int8', 'bool_', 'float16'):\n"
        "    kind = getattr(np, name)\n"
        "    program = load('typed', build, [8], dtype=kind)\n"
        "    given = torch.tensor(np.ones(8, dtype=kind))\n"
        "    with sim.flips(1) as made:\n"
        "        got = program.run([given.to('npu')])[0].cpu().flatten()\n"
        "    flip = made.hits[0]\n"
        "    wrong = (got != given).sum().item()\n"
        "    print(name, wrong, float(got[flip.element]) == flip.after, flip.bit)\n"
    )
    assert printed == [
        "int32 1 True 30",
        "int64 1 True 62",
        "uint8 1 True 7",
        "int8 1 True 6",
        "bool_ 1 True 0",
        "float16 1 True 14",
    ]


def test_outputs_whose_shape_the_run_finds_are_hit_too(run_sim):
    printed = run_sim(
        "rows = load('rows', lambda x: [ops.multiply(x, ops.constant(np.float32(2)))], [-1, 4])\n"
        "with sim.flips(1) as made:\n    got = rows.run([x.view(16, 4)])[0].cpu().flatten()\n"
        "print((got != 2 * x.cpu()).nonzero().flatten().tolist() == [made.hits[0].element])\n"
    )
    assert printed == ["True"]


def test_replays_of_a_captured_graph_are_runs_too(run_sim):
    printed = run_sim(
        "graph = torch.npu.NPUGraph()\n"
        "with torch.npu.graph(graph):\n    kept = two.run([x])\n"
        "torch.npu.synchronize()\n"
        "with sim.flips(1) as made:\n    graph.replay(); print(len(wrong(kept)), made.runs)\n"
        "graph.replay(); print(wrong(kept))\n"
    )
    assert printed == ["1 1", "[]"]


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan")])
def test_what_is_no_probability_is_refused(probability):
    with (
        pytest.raises(InputError, match=f"from 0 to 1, got {probability}") as caught,
        sim.flips(probability),
    ):
        raise AssertionError("it was taken")
    assert caught.value.code == "sim-input"


def test_a_negative_bit_is_refused():
    with pytest.raises(InputError, match="got -1") as caught, sim.flips(1, bit=-1):
        raise AssertionError("it was taken")
    assert caught.value.code == "sim-input"


def test_another_driver_is_refused():
    with (
        pytest.raises(InputError, match=f"NPU_DRIVER={config.driver!r}") as caught,
        sim.flips(0.5),
    ):
        raise AssertionError("it was taken")
    assert caught.value.code == "sim-input"
