"""Converters of other wheels: found by entry point at the first lowering, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OPS = """
import torch
library = torch.library.Library("{name}", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
"""

CONVERTER = """
import openvino.opset15 as ops
import torch
import {name}
from npu_compiler import register_fx_node_converter

@register_fx_node_converter(torch.ops.{name}.twice.default)
def convert_twice(ctx, x):
    return ops.add(ctx.get(x), ctx.get(x))
"""

# Compiles a call of twice for each named wheel, and prints the calls that ran eagerly.
USE = """
import sys, torch
sys.path.insert(0, {place!r})
assert not any(name.endswith("_converter") for name in sys.modules)
import {first}
from npu_compiler.graph_compiler.records import collecting
x = torch.randn(8, 8)
with collecting() as records, torch.no_grad():
    for name in {names}:
        __import__(name)
        op = getattr(torch.ops, name).twice
        result = torch.compile(lambda x: op(x).relu(), backend="npu")(x)
        torch.testing.assert_close(result, (x + x).relu())
print([f"{{node.op}}: {{node.reason}}" for record in records for node in record.eager])
"""


def write_wheel(place: Path, name: str, converter: str) -> None:
    """The installed files of a wheel with an op and its converter."""
    (place / f"{name}.py").write_text(OPS.format(name=name))
    (place / f"{name}_converter.py").write_text(converter)
    info = place / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        f"[npu_compiler.converters]\n{name} = {name}_converter\n"
    )


Use = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def use(run_python: Use, tmp_path: Path) -> Use:
    """Uses the wheels of these names in a process that has imported none of them."""

    def use(*names: str) -> subprocess.CompletedProcess[str]:
        script = USE.format(place=str(tmp_path), first=names[0], names=names)
        return run_python([sys.executable, "-c", script], timeout=300)

    return use


def test_a_wheels_converter_needs_no_import(tmp_path, use):
    write_wheel(tmp_path, "mine", CONVERTER.format(name="mine"))
    done = use("mine")
    assert done.stdout.strip() == "[]", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    "fault, said",
    [
        ("raise OSError('libmine.so is not there')", "OSError: libmine.so is not there"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "register_fx_node_converter(torch.ops.aten.add.Tensor)(convert_twice)",
            "aten.add.Tensor: an op must have only one converter",
        ),
    ],
)
def test_a_broken_wheel_is_named_and_stops_no_other(tmp_path, use, fault, said):
    write_wheel(tmp_path, "broken", CONVERTER.format(name="broken") + fault)
    write_wheel(tmp_path, "sound", CONVERTER.format(name="sound"))
    done = use("broken", "sound")
    assert done.returncode == 0, done.stderr
    assert "entry point broken = broken_converter of broken 1.5" in done.stderr
    assert said in done.stderr
    assert "[converter-plugin]" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert done.stdout.count("twice.default: ") == 1
    assert "broken.twice.default: no converter registered (the converters of broken 1.5 " in (
        done.stdout
    )
