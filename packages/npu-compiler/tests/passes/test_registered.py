"""Passes of other wheels: found by entry point, in order, with errors that name their line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from npu_compiler import register_pass
from npu_compiler.errors import PassError, RegistryError
from npu_compiler.passes import FusePattern, GraphPass, Replacement, anything, call
from npu_compiler.passes import registered as registered_module
from npu_compiler.passes.pipeline import PASSES, pass_names
from npu_compiler.passes.registered import graph_passes

# A fusion before conversion, one after it, and a pass over the whole model that follows that one.
PASSES_OF_A_WHEEL = """
from dataclasses import dataclass
import openvino as ov
import openvino.opset15 as ops
import torch
from openvino.passes import AnyInput, Matcher, MatcherPass, ModelPass, WrapType
from npu_compiler import register_pass
from npu_compiler.passes import FusePattern, Replacement, anything, call

aten = torch.ops.aten

@register_pass(after="fuse_gelu")
@dataclass(frozen=True)
class FuseSquareRoot(FusePattern):
    name = "acme_square_root"
    patterns = (call(aten.reciprocal.default, call(aten.sqrt.default, anything("x"))),)

    def replacement(self, match, facts):
        {graph_fault}
        return Replacement(aten.rsqrt.default, (match["x"],))

@register_pass()
class UseClamp(MatcherPass):
    name = "acme_clamp"

    def __init__(self):
        super().__init__()
        self.register_matcher(Matcher(WrapType("opset15.Relu", AnyInput()), "acme"), self.replace)

    def replace(self, matcher):
        {pattern_fault}
        relu = matcher.get_match_root()
        clamp = ops.clamp(relu.input_value(0), 0.0, 3e38)
        clamp.set_friendly_name("acme")
        relu.output(0).replace(clamp.output(0))
        return True

@register_pass(after="acme_clamp")
class CountClamps(ModelPass):
    def run_on_model(self, model):
        {model_fault}
        clamps = [one for one in model.get_ops() if one.get_friendly_name() == "acme"]
        print(len(clamps), "clamps")
        return False
"""

# Compiles a graph, and prints its passes that fired and where its programs came from.
USE = """
import sys, warnings, torch
sys.path.insert(0, {place!r})
from npu_compiler.graph_compiler.records import collecting
x = torch.rand(8, 8) + 1
options = dict(target="openvino", cache_dir={cache!r}, disabled_passes={disabled!r})
def step(x):
    return torch.relu(x @ x).sqrt().reciprocal()
with collecting() as records, torch.no_grad():
    result = torch.compile(step, backend="npu", options=options)(x)
torch.testing.assert_close(result, step(x))
for record in records:
    print([one.name for one in record.passes if one.count and "acme" in one.name])
    print([program.from_cache for program in record.programs], len(record.eager), "eager")
"""

Use = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def use(run_python: Use, tmp_path: Path) -> Use:
    """Writes the installed files of a wheel with passes, and compiles with it."""

    def use(*, disabled: tuple[str, ...] = (), **faults: str) -> subprocess.CompletedProcess[str]:
        info = tmp_path / "acme-1.5.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text("[npu_compiler.passes]\nacme = acme_passes\n")
        kinds = ("graph_fault", "pattern_fault", "model_fault")
        text = PASSES_OF_A_WHEEL.format(**{kind: faults.get(kind, "pass") for kind in kinds})
        (tmp_path / "acme_passes.py").write_text(text)
        script = USE.format(place=str(tmp_path), cache=str(tmp_path / "cache"), disabled=disabled)
        return run_python([sys.executable, "-c", script], timeout=300)

    return use


def test_passes_of_a_wheel_run_before_and_after_conversion(use):
    first = use()
    assert first.stdout.splitlines() == ["1 clamps", "['acme_square_root']", "[False] 0 eager"], (
        first.stderr
    )
    # A program keeps the changes of passes while their code is the same.
    again = use()
    assert again.stdout.splitlines()[-1:] == ["[True] 0 eager"], again.stderr
    changed = use(graph_fault="return None")
    assert changed.stdout.splitlines() == ["1 clamps", "[]", "[False] 0 eager"], changed.stderr
    without = use(disabled=("acme_clamp", "acme_square_root"))
    assert without.stdout.splitlines() == ["0 clamps", "[]", "[False] 0 eager"], without.stderr


@pytest.mark.parametrize(
    "kind, name",
    [
        ("graph_fault", "acme_square_root"),
        ("pattern_fault", "acme_clamp"),
        ("model_fault", "CountClamps"),
    ],
)
def test_an_error_in_a_pass_names_its_line(tmp_path, use, kind, name):
    done = use(**{kind: "raise RuntimeError('no table for Clamp')"})
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "acme_passes.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if "raise Runtime" in text)
    place = f"{tmp_path / 'acme_passes.py'}:{line}"
    assert f"pass {name} fails at {place} with RuntimeError: no table for Clamp" in done.stderr
    assert "it runs eagerly. Its author can fix it." in done.stderr
    assert "OpenVINO rejects" not in done.stderr
    assert "Please report it" not in done.stderr


def test_a_broken_wheel_is_named(tmp_path, use):
    done = use(graph_fault="no Python")
    assert done.returncode == 0, done.stderr
    assert (
        "entry point acme = acme_passes of acme 1.5 must name a module that registers passes"
        in (done.stderr)
    )
    assert "Graphs are compiled without them." in done.stderr
    assert done.stdout.splitlines() == ["[]", "[False] 0 eager"]


@pytest.fixture
def table(monkeypatch):
    """A table without rows, which is emptied afterwards."""
    monkeypatch.setattr(registered_module._PLUGINS, "_is_loaded", True)
    yield registered_module.REGISTERED
    registered_module.REGISTERED.clear()


def a_pass(name: str, stage: str = "fuse") -> type:
    members = {"name": name, "stage": stage, "call": lambda self, graph, facts: 0}
    return type(name, (GraphPass,), members)


def test_neighbours_give_the_order(table):
    register_pass(after="fuse_gelu")(a_pass("b"))
    register_pass(after="fuse_gelu")(a_pass("c"))
    register_pass(before="b")(a_pass("a"))
    register_pass()(a_pass("last", "normalize"))
    names = [one.name for one in graph_passes(PASSES)]
    place = names.index("fuse_gelu")
    assert names[place : place + 4] == ["fuse_gelu", "a", "b", "c"]
    own = [one for one in PASSES if one.stage == "normalize"]
    assert names[names.index(own[-1].name) + 1] == "last"
    assert pass_names() == tuple(names)


@pytest.mark.parametrize(
    "neighbours, made, code, quoted",
    [
        ({"after": "fuse_gelo"}, a_pass("one"), "bad-pass", "'fuse_gelo'"),
        ({"before": "fuse_gelu", "after": "fuse_gelu"}, a_pass("one"), "bad-pass", "before="),
        ({}, a_pass("one", "partition"), "bad-pass", "'partition'"),
        ({}, dict, "bad-pass", "<class 'dict'>"),
        ({}, a_pass("fuse_gelu"), "duplicate-pass", "npu_compiler.passes.pipeline"),
    ],
)
def test_what_cannot_be_registered_is_an_error(table, neighbours, made, code, quoted):
    with pytest.raises(RegistryError) as caught:
        register_pass(**neighbours)(made)
    assert caught.value.code == code
    assert quoted in str(caught.value)
    assert not table


def test_strict_raises_the_error_of_a_pass(table, compiled):
    class Faulty(FusePattern):
        name = "faulty"
        patterns = (call(torch.ops.aten.sin.default, anything("x")),)

        def replacement(self, match, facts):
            return Replacement(torch.ops.aten.cos.default, (match["y"],))

    register_pass()(Faulty)
    with pytest.raises(
        BackendCompilerFailed, match=r"pass faulty fails at .*test_registered.py:\d+ .*pass-failed"
    ):
        compiled(torch.sin, options={"strict": True})(torch.ones(3))


def test_a_pass_that_changes_a_port_is_named(table, compiled):
    from openvino.passes import ModelPass

    class Dropping(ModelPass):
        def run_on_model(self, model):
            sine = next(one for one in model.get_ops() if one.get_type_name() == "Sin")
            sine.output(0).replace(sine.input_value(0))
            return True

    register_pass()(Dropping)
    with pytest.raises(PassError, match=r"pass Dropping .*output 0: an input") as caught:
        compiled(torch.sin, options={"strict": True, "target": "openvino"})(torch.ones(3))
    assert caught.value.code == "pass-broke-graph"
