"""The list of passes as a whole."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.errors import OptionError
from npu_compiler.options import parse_options
from npu_compiler.passes.infra.pass_base import Facts
from npu_compiler.passes.pipeline import PASSES, STAGES, pass_names, run_passes


def test_passes_belong_to_stages_in_order():
    order = [stage.name for stage in STAGES]
    places = [order.index(graph_pass.stage) for graph_pass in PASSES]
    assert places == sorted(places)


def test_names_are_unique():
    assert len(set(pass_names())) == len(PASSES)


def test_disabled_pass_does_not_run(compiled):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    with torch.no_grad():
        for disabled, expected in (((), True), (("fuse_linear_activation",), False)):
            torch._dynamo.reset()
            fast = compiled(model, options={"disabled_passes": disabled})
            fast(torch.randn(2, 4))
            fired = {result.name for result in fast.records[-1].passes}
            assert ("fuse_linear_activation" in fired) is expected


def test_pass_that_is_asked_for_runs():
    graph = torch.fx.symbolic_trace(torch.nn.Identity()).graph
    for node in graph.nodes:
        node.meta["val"] = None
    off = {one.name for one in PASSES if not one.by_default}
    assert off == {"merge_linears"}
    default, asked, both = (
        {result.name for result in run_passes(graph, Facts(), **options)}
        for options in ({}, {"enabled": off}, {"enabled": off, "disabled": off})
    )
    assert default == both == asked - off == set(pass_names()) - off


@pytest.mark.parametrize("option", ["enabled_passes", "disabled_passes"])
def test_unknown_pass_is_an_error_that_lists_them(option):
    with pytest.raises(OptionError, match=f"{option}.*fuse_linear, ") as caught:
        parse_options({option: ["fuse_lineal"]})
    assert caught.value.code == "option-value"


def test_watcher_sees_each_pass():
    graph = torch.fx.symbolic_trace(torch.nn.Identity()).graph
    for node in graph.nodes:
        node.meta["val"] = None
    seen = []
    run_passes(graph, Facts(), watch=lambda one, result: seen.append(result.name))
    assert tuple(seen) == tuple(one.name for one in PASSES if one.by_default)
