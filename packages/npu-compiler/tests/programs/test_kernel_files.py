"""Kernel programs on disk: found as they were, or not at all."""

import json

import pytest
import torch

from npu_compiler.programs import ProgramCache
from npu_compiler.programs.execution import KernelCall, KernelForm
from npu_compiler.programs.kernel_files import find_kernels, store_kernels
from npu_ops.kernel_programs.program import Columns, KernelProgram, Linear, Load, Recipe, Store
from npu_ops.kernel_programs.weights import pack

WEIGHT = torch.linspace(-2, 3, 15).reshape(3, 5)
FORM = KernelForm(
    program=KernelProgram(
        instructions=(
            Load(out=Columns(0, 0, 5), argument=0),
            Linear(input=Columns(0, 0, 5), out=Columns(1, 0, 3), weight="w", bias=None),
            Store(input=Columns(1, 0, 3), result=0),
        ),
        widths=(5, 3),
        weights={"w": Recipe(sources=("w",), kind="linear")},
        layers=(),
        logits=None,
        vocabulary=0,
        positions=None,
    ),
    rows=2,
    inputs=((2, 5),),
    results=((2, 3),),
    home="cpu",
    is_alone=True,
)


@pytest.fixture
def cache(tmp_path) -> ProgramCache:
    return ProgramCache(tmp_path)


def test_a_program_is_found_as_it_was(cache):
    store_kernels(cache, "key", FORM, {"w": pack(WEIGHT, "float32")}, name="graph_0")
    form, weights = find_kernels(cache, "key")
    assert form == FORM
    x = torch.randn(2, 5)
    call = KernelCall(form, weights, input_names=["x"], name="kernels")
    (result,) = call(x)
    torch.testing.assert_close(result, x @ WEIGHT.t())
    assert find_kernels(cache, "another") is None


@pytest.mark.parametrize("name", ["weights.safetensors", "entry.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_one_is_not_found_and_is_made_again(cache, name, damage):
    weights = {"w": pack(WEIGHT, "float32")}
    store_kernels(cache, "key", FORM, weights, name="graph_0")
    path = cache.directory / "key" / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x55
        path.write_bytes(content)
    assert find_kernels(cache, "key") is None or name == "entry.json"
    store_kernels(cache, "key", FORM, weights, name="graph_0")
    assert find_kernels(cache, "key")[0] == FORM


def test_one_of_another_form_is_not_found(cache):
    store_kernels(cache, "key", FORM, {"w": pack(WEIGHT, "float32")}, name="graph_0")
    path = cache.directory / "key" / "entry.json"
    record = json.loads(path.read_text())
    record["facts"]["kernels"]["program"]["instructions"][0] = {"kind": "teleport"}
    path.write_text(json.dumps(record))
    assert find_kernels(cache, "key") is None
