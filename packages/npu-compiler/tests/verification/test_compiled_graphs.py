"""Behaviour of torch.compile(backend="npu") for a wrong program."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

import openvino.opset15 as ops
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from npu_compiler import CompilerConfig, OptionError, explain
from npu_compiler.errors import WrongResultError, WrongResultWarning
from npu_compiler.graph_compiler.compiled_graph import CompiledGraph
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.verification.result import Verdict


def _before_and_after(x: torch.Tensor) -> torch.Tensor:
    scaled = (x * 3).tanh()
    wave = scaled.sin()  # the line that is blamed
    return (wave + 1).tanh() * 2


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings of one test about a program are not visible to the next."""
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))


def _verdicts(records: list[Any]) -> list[str | None]:
    programs = [program for record in records for program in record.programs]
    return [None if one.verdict is None else one.verdict.status for one in programs]


@pytest.mark.usefixtures("wrong_sin")
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_wrong_call_runs_eagerly_and_the_first_result_is_right(compiled, device) -> None:
    fast = compiled(_before_and_after)
    x = torch.randn(4, 8, device=device)
    with torch.no_grad(), pytest.warns(WrongResultWarning, match="its program differed from torch"):
        found = fast(x)
    torch.testing.assert_close(found.cpu(), _before_and_after(x.cpu()))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(x + 1).cpu(), _before_and_after(x.cpu() + 1))
    assert fast.eager_ops == ["aten.sin.default"]
    assert _verdicts(fast.records) == ["right", "right"]


@pytest.mark.usefixtures("wrong_sin")
def test_the_warning_names_the_line_and_how_far_off_it_is() -> None:
    with torch.no_grad(), pytest.warns(WrongResultWarning) as told:
        torch.compile(_before_and_after, backend="npu")(torch.full((4, 8), 0.1))
    (warning,) = told
    text = str(warning.message)
    line = _before_and_after.__code__.co_firstlineno + 2
    assert f"{Path(__file__).name}:{line}" in text
    assert "is off by" in text


@pytest.mark.usefixtures("wrong_sin")
def test_without_verification_the_wrong_result_is_handed_out(compiled) -> None:
    fast = compiled(_before_and_after, options={"verify": "off"})
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert not torch.allclose(fast(x), _before_and_after(x), atol=1e-2)
    assert _verdicts(fast.records) == [None]


@pytest.mark.usefixtures("wrong_sin")
def test_strict_raises_where_a_call_would_run_eagerly() -> None:
    fast = torch.compile(_before_and_after, backend="npu", options={"strict": True})
    with torch.no_grad(), pytest.raises(WrongResultError, match="differed from torch") as failure:
        fast(torch.randn(4, 8))
    assert failure.value.code == "wrong-result"


@pytest.mark.usefixtures("wrong_sin")
def test_a_later_graph_with_the_program_knows_that_it_is_wrong() -> None:
    x = torch.randn(4, 8)
    with torch.no_grad(), pytest.warns(WrongResultWarning):
        torch.compile(_before_and_after, backend="npu")(x)
    torch._dynamo.reset()
    with torch.no_grad(), collecting() as records:
        found = torch.compile(_before_and_after, backend="npu")(x)  # warns no more
        torch.testing.assert_close(found, _before_and_after(x))
    (record,) = records
    assert [node.op for node in record.eager] == ["aten.sin.default"]
    torch._dynamo.reset()
    fast = torch.compile(_before_and_after, backend="npu", options={"strict": True})
    with torch.no_grad(), pytest.raises(WrongResultError):
        fast(x)


@pytest.mark.usefixtures("wrong_sin")
def test_explain_lists_what_ran_eagerly_and_why() -> None:
    with torch.no_grad(), pytest.warns(WrongResultWarning):
        explanation = explain(_before_and_after, torch.randn(4, 8))
    (node,) = explanation.eager
    assert node.op == "aten.sin.default"
    assert "differed from torch" in node.reason


def test_explain_says_that_programs_were_compared() -> None:
    with torch.no_grad():
        text = str(explain(_before_and_after, torch.randn(4, 8)))
    row = next(line for line in text.splitlines() if line.startswith("graph_"))
    assert row.split()[-1] == "yes"


@pytest.mark.usefixtures("wrong_sin")
def test_training_graphs_are_compared_too() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    with pytest.warns(WrongResultWarning):
        torch.compile(_before_and_after, backend="npu")(x).sum().backward()
    _before_and_after(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_workaround_that_gives_torchs_result_is_taken(monkeypatch, plant, on_npu) -> None:
    # Wrong until a flag is set, which stands for an option of the device's compiler.
    state = {"is_wrong": True}
    from npu_compiler.graph_compiler.building import _Building

    original = _Building._with_options

    def with_options(building: Any, further: Any) -> Any:
        assert further == {"SNIPPETS_MODE": "DISABLE"}
        state["is_wrong"] = False
        building._key = None  # compiled anew, and not from the model that was kept
        return original(building, further)

    def convert(ctx: Any, self: Any) -> Any:
        return (ops.cos if state["is_wrong"] else ops.sin)(ctx.get(self))

    plant(torch.ops.aten.sin.default, convert)
    monkeypatch.setattr(_Building, "_with_options", with_options)
    x = torch.randn(4, 8)
    # An NPU refuses the option, which is the CPU plugin's.
    text = "runs eagerly from now on" if on_npu else "right with SNIPPETS_MODE=DISABLE"
    told = pytest.warns(WrongResultWarning, match=text)
    with collecting() as records, torch.no_grad(), told:
        found = torch.compile(_before_and_after, backend="npu")(x)
    torch.testing.assert_close(found, _before_and_after(x))
    assert _verdicts(records) == ([] if on_npu else ["mended"])


def test_a_pass_that_changes_the_meaning_is_noticed(monkeypatch, compiled) -> None:
    from npu_compiler.graph_compiler import compiled_graph

    original = compiled_graph.run_passes

    def spoiled(graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> Any:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default
        return original(graph, *args, **kwargs)

    monkeypatch.setattr(compiled_graph, "run_passes", spoiled)
    fast = compiled(_before_and_after)
    x = torch.randn(4, 8)
    with torch.no_grad(), pytest.warns(WrongResultWarning, match="the compiled graph differed"):
        found = fast(x)
    torch.testing.assert_close(found, _before_and_after(x))
    with torch.no_grad():
        torch.testing.assert_close(fast(x * 2), _before_and_after(x * 2))
    assert fast.programs == 0


@pytest.mark.usefixtures("wrong_sin")
def test_a_buffer_that_the_graph_writes_holds_the_right_values_afterwards() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.sin())
            return (self.total * 2).exp()

    ours, torchs = Counts(), Counts()
    x = torch.randn(4, 8)
    fast = torch.compile(ours, backend="npu")
    with torch.no_grad():
        with pytest.warns(WrongResultWarning):
            torch.testing.assert_close(fast(x), torchs(x))
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WrongResultWarning)
                torch.testing.assert_close(fast(x), torchs(x))
    torch.testing.assert_close(ours.total, torchs.total)


def test_random_numbers_are_drawn_once(compiled) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).exp() + torch.rand_like(x)

    x = torch.randn(4, 8)
    fast = compiled(noisy)
    with torch.no_grad():
        torch.manual_seed(3)
        first, after = fast(x), torch.rand(1)
        torch.manual_seed(3)
        torch.testing.assert_close(first, noisy(x))
        assert torch.equal(after, torch.rand(1))
    assert set(_verdicts(fast.records)) == {"right"}


def test_a_graph_that_torch_cannot_compute_is_named_as_unchecked(monkeypatch, compiled) -> None:
    from npu_compiler.verification import program_check

    def refuse(_: Any) -> Any:
        raise NotImplementedError("no kernel of the host")

    monkeypatch.setattr(program_check.Reference, "results", refuse)
    fast = compiled(_before_and_after)
    with torch.no_grad():
        fast(torch.randn(4, 8))
    (record,) = fast.records
    verdict = record.programs[0].verdict
    assert verdict.status == "unchecked"
    assert "no kernel of the host" in verdict.difference


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_compressed_weights_are_compared_as_what_their_integers_stand_for(compiled, mode) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Linear(256, 128)).eval()
    fast = compiled(model, options={"dtype": mode})
    with torch.no_grad():
        fast(torch.randn(4, 128))
    assert _verdicts(fast.records) == ["right"]


def test_a_compressed_program_that_is_wrong_is_noticed(plant) -> None:
    def convert(ctx: Any, self: Any) -> Any:
        return ops.multiply(ops.relu(ctx.get(self)), ctx.number(1.01, torch.float32))

    plant(torch.ops.aten.sin.default, convert)
    first, second = torch.nn.Linear(128, 256), torch.nn.Linear(256, 128)
    fast = torch.compile(lambda x: second(first(x).sin()), backend="npu", options={"dtype": "int8"})
    with torch.no_grad(), pytest.warns(WrongResultWarning):
        fast(torch.randn(4, 128))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_raises_no_false_alarm(compiled, dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64)
    ).eval()
    for options in ({"dtype": dtype}, {}):
        used = model if options else model.to(getattr(torch, dtype))
        fast = compiled(used, options=options)
        with torch.no_grad():
            fast(torch.randn(8, 64, dtype=next(used.parameters()).dtype))
        assert set(_verdicts(fast.records)) == {"right"}
        torch._dynamo.reset()


def test_always_compares_each_run(monkeypatch) -> None:
    # Wrong from the second run on.
    fast = torch.compile(_before_and_after, backend="npu", options={"verify": "always"})
    x = torch.randn(4, 8)
    with torch.no_grad():
        fast(x)
        from npu_compiler.programs.execution import ProgramCall

        original = ProgramCall.forward

        def spoiled(call: ProgramCall, *inputs: Any) -> Any:
            watch, call.watch = call.watch, None
            try:
                results = original(call, *inputs)
            finally:
                call.watch = watch
            results[0].view(-1)[0] += 1
            return results if watch is None else watch(inputs, results)

        monkeypatch.setattr(ProgramCall, "forward", spoiled)
        with pytest.warns(WrongResultWarning):
            torch.testing.assert_close(fast(x), _before_and_after(x))


def test_new_weights_are_another_program_and_are_compared_again(compiled) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    fast = compiled(model)
    x = torch.randn(2, 8)
    with torch.no_grad():
        fast(x)
        model[0].weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))
    assert _verdicts(fast.records) == ["right", "right"]


def test_a_wrong_value_of_the_option_is_named() -> None:
    with pytest.raises(OptionError, match="option verify: one of 'first', 'always', 'off'"):
        CompilerConfig(verify="sometimes")


def test_the_first_call_of_four_threads_is_judged_once(monkeypatch) -> None:
    trials: list[int] = []
    original = CompiledGraph._conclude

    def counted(graph: CompiledGraph, *args: Any) -> Any:
        trials.append(1)
        return original(graph, *args)

    monkeypatch.setattr(CompiledGraph, "_conclude", counted)
    x = torch.randn(4, 8)
    # Through torch.compile each thread may get a separate graph.
    traced = make_fx(lambda x: (_before_and_after(x),), tracing_mode="fake")(x)
    graph = CompiledGraph(traced, kind="inference", static_positions=(), config=CompilerConfig())
    results: list[torch.Tensor] = []
    start = threading.Barrier(4)

    def call() -> None:
        start.wait()
        with torch.no_grad():
            results.extend(graph([x]))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trials) == 1
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, _before_and_after(x))


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("right"),
        Verdict("mended", "off by 1", {"SNIPPETS_MODE": "DISABLE"}, source="a.py:3"),
        Verdict("wrong", "off by 1", nodes=(3, 4)),
    ],
)
def test_a_verdict_is_read_as_it_was_written(verdict: Verdict) -> None:
    assert Verdict.from_json(json.loads(json.dumps(verdict.as_json()))) == verdict


@pytest.mark.parametrize("content", [None, [], {}, {"status": "fine"}, {"status": "right", "x": 1}])
def test_what_is_no_verdict_is_none(content: Any) -> None:
    assert Verdict.from_json(content) is None


@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_of_nan_is_no_wrong_result(place: int, is_causal: bool) -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal) * 1.0

    parts = [torch.randn(2, 3, 8, 8) for _ in range(3)]
    parts[place][:, :, 5:] = torch.nan
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        result = torch.compile(attend, backend="npu")(*parts)
    assert result[:, :, 5:].isnan().all()
