"""The commands that read traces: arguments, output and exit codes."""

import csv
import json

import pytest

from npu_command.subcommands import read_command
from npu_profiler.cli import main
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Sample, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
STEPS = Track(1, 9, "prefill and decode", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")
COPIES = Track(1 << 22, (1 << 22) + 2, "copies", "npu:0")
MS = 1_000_000


def step_slices(at, scale, layers):
    told = {"type": "FullyConnected", "precision": "bf16", "implementation": "gemm_bf16"}
    start = at * 100 * MS
    slices = [
        Slice(STEPS, "decode", "decode 1 tokens", start, 50 * MS),
        Slice(MAIN, "cpu_op", "npu::program model", start + MS, int(40 * MS * scale)),
        Slice(MAIN, "cpu_op", "aten::argmax", start + 45 * MS, MS + at * 1_000),
        Slice(PROGRAMS, "program", "model", start + 2 * MS, int(38 * MS * scale)),
        Slice(COPIES, "copy", "npu to cpu", start + 46 * MS, MS, {"bytes": 1 << 20}),
    ]
    if layers:
        slices.append(
            Slice(
                PROGRAMS,
                "layer",
                "mm_1/aten.mm.default",
                start + 2 * MS,
                int(38 * MS * scale),
                {**told, "duration_us": 36_000 * scale},
            )
        )
    return slices


@pytest.fixture
def make_trace(write_trace):
    def make(name="trace.json", *, scale=1, layers=True, memory=True, is_complete=True):
        slices = [item for at in range(4) for item in step_slices(at, scale, layers)]
        return str(
            write_trace(
                slices=slices,
                instants=[Instant(MAIN, "fallback", "aten::argmax", 45 * MS, {"duration_us": 9})],
                samples=[
                    Sample(PROGRAMS, "memory", "allocated_bytes", time * MS, value << 20)
                    for time, value in ((0, 1), (20, 65), (46, 2))
                    if memory
                ],
                flows=[
                    Flow(
                        "launch",
                        "launch",
                        FlowEnd(MAIN, item.start_ns),
                        FlowEnd(PROGRAMS, item.start_ns),
                    )
                    for item in slices
                    if item.category == "program"
                ],
                name=name,
                is_complete=is_complete,
                facts={"torch": "2.13.0", "problems": []},
            )
        )

    return make


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_every_command_and_each_has_its_own(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {name} " in out for name in read_command("npu_profiler").subcommands)
    for name in read_command("npu_profiler").subcommands:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: npu-profiler {name}")


@pytest.mark.parametrize("words", [[], ["none"]])
def test_call_without_a_command_shows_the_list(capsys, words):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert "  summary " in out + err


def test_summary_shows_where_time_went(capsys, make_trace):
    code, out, _ = run(capsys, "summary", make_trace())
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "wall time: 350.0 ms" in lines
    assert (
        "npu:0 busy: 152.0 ms = 43.4 % of the wall time, 45.0 % from its first program to its "
        "last; 4 runs"
    ) in lines
    assert "npu:0 gaps: 186.0 ms in 3 gaps; longest:" in lines
    assert any("aten::argmax" in line and line.startswith("62.00 ms at") for line in lines)
    assert "decodes: 4, median 50.00 ms, 50.00 ms to 50.00 ms" in lines
    assert "fallbacks: 1 ops by CPU kernels, 0.009 ms (aten::argmax x1)" in lines
    assert "copied npu to cpu: 4.0 MiB in 4 copies, 4.000 ms, 1.05 GB/s" in lines
    assert "npu::program model 4 160.0 97.6 % 160.0 152.0 0" in lines
    assert "model npu:0 4 152.0 100.0 % 38.00 38.00 38.00 4 94.7 %" in lines
    assert "1 FullyConnected bf16 gemm_bf16 4 144.0 36.00 94.7 %" in lines


@pytest.mark.parametrize("view", ["op", "program", "type", "layer"])
def test_summary_by_one_view_shows_that_table_alone(capsys, make_trace, view):
    code, out, _ = run(capsys, "summary", make_trace(), "--by", view, "--top", "1")
    titles = ("ops by own", "programs by time", "kinds of layers", "layers by time")
    assert code == 0
    assert [title for title in titles if f"\n{title}" in out] == [
        titles[("op", "program", "type", "layer").index(view)]
    ]
    assert ("and 1 more" in out) == (view != "program")


@pytest.mark.parametrize(
    "view, option", [("layer", "--layers"), ("module", "--modules"), ("line", "--stacks")]
)
def test_summary_says_which_option_would_record_what_is_missing(capsys, make_trace, view, option):
    _, out, _ = run(capsys, "summary", make_trace(layers=False), "--by", view)
    assert f"no {view}" in out.replace("Python ", "")
    assert option in out


def test_summary_of_a_killed_program_says_so(capsys, make_trace):
    code, out, _ = run(capsys, "summary", make_trace("cut.json.gz", is_complete=False))
    assert code == 0
    assert "the file has no end" in out
    assert "npu:0 busy" in out


def test_summary_as_json_has_the_same_figures(capsys, make_trace):
    _, out, _ = run(capsys, "summary", make_trace(), "--json", "--by", "layer")
    found = json.loads(out)
    (device,) = found["overview"]["devices"]
    layer, _ = found["tables"]["layer"]
    assert (device["busy_ns"], layer["total_ns"], layer["layer"]) == (
        152 * MS,
        144 * MS,
        "mm_1/aten.mm.default",
    )


def test_summary_names_what_a_program_spends_outside_its_layers(capsys, make_trace):
    _, out, _ = run(capsys, "summary", make_trace(), "--by", "type")
    (line,) = [line.split() for line in out.splitlines() if "(outside of layers)" in line]
    # Four runs of 38 ms, with a layer that reports 36.
    assert line == ["-", "(outside", "of", "layers)", "4", "8.000", "2.000", "5.3", "%"]
    _, out, _ = run(capsys, "summary", make_trace(), "--by", "layer")
    assert "(outside of layers)" in out


def test_compare_of_a_trace_with_itself_finds_nothing(capsys, make_trace):
    path = make_trace()
    code, out, _ = run(capsys, "compare", path, path, "--fail-above", "0")
    assert code == 0
    assert "slower" not in out.replace("nothing became slower", "")
    assert "nothing became slower by more than 0 % beyond the noise" in out
    assert "calls and impact are those of a step (decode)" in out


def test_compare_fails_above_what_is_allowed(capsys, make_trace):
    base, new = make_trace("a.json", scale=1), make_trace("b.json", scale=1.1)
    code, out, _ = run(capsys, "compare", base, new, "--fail-above", "5")
    assert code == 1
    assert "slower by more than 5 %: program model +10.0 %" in out
    assert run(capsys, "compare", base, new, "--fail-above", "15")[0] == 0
    assert run(capsys, "compare", base, new)[0] == 0
    assert run(capsys, "compare", new, base, "--fail-above", "5")[0] == 0


def test_compare_folds_what_did_not_change(capsys, make_trace):
    base, new = make_trace("a.json", scale=1), make_trace("b.json", scale=1.1)
    _, out, _ = run(capsys, "compare", base, new)
    folded = out[out.index("ops by own host time") :]
    assert "npu::program model" in folded
    assert "aten::argmax" not in folded
    assert "1 unchanged, within noise: 1.002 ms, +0.000 ms (--all shows them)" in folded
    _, out, _ = run(capsys, "compare", base, new, "--all")
    assert "aten::argmax" in out
    assert "unchanged" not in out


def test_compare_of_several_traces_uses_what_differs_between_them(capsys, make_trace):
    base = [make_trace(f"a{n}.json", scale=1 + n / 100) for n in range(3)]
    new = [make_trace(f"b{n}.json", scale=1.2 + n / 100) for n in range(3)]
    _, out, _ = run(capsys, "compare", "--base", *base, "--new", *new, "--json")
    (program,) = json.loads(out)["tables"]["program"]
    assert program["verdict"] == "slower"
    assert program["change"] == pytest.approx(0.2 / 1.01)
    assert 0 < program["noise"] < 0.1
    _, out, _ = run(capsys, "compare", "--base", *base, "--new", base[1], base[2], "--json")
    (program,) = json.loads(out)["tables"]["program"]
    assert program["verdict"] == "within noise"


def test_compare_names_traces_of_killed_programs(capsys, make_trace):
    whole, cut = make_trace("a.json"), make_trace("b.json", is_complete=False)
    _, out, _ = run(capsys, "compare", whole, cut)
    assert out.startswith(f"{cut} has no end")


def test_memory_shows_the_curve_and_who_holds_its_peak(capsys, make_trace, tmp_path):
    picture = tmp_path / "memory.svg"
    code, out, _ = run(capsys, "memory", make_trace(), "-o", picture)
    assert code == 0
    assert "npu:0 allocated_bytes: first 1.0 MiB, highest 65.0 MiB, last 2.0 MiB" in out
    assert "█" in out
    assert "peak 65.0 MiB at 20.00 ms, at npu::program model in decode 1 tokens" in out
    text = picture.read_text()
    assert text.startswith("<svg")
    assert "npu::program model in decode 1 tokens" in text


def test_memory_draws_a_page(capsys, make_trace, tmp_path):
    page = tmp_path / "memory.html"
    assert run(capsys, "memory", make_trace(), "-o", page, "--json")[0] == 0
    assert "<svg" in page.read_text()


def test_stats_writes_four_tables(capsys, make_trace, tmp_path):
    code, out, _ = run(capsys, "stats", make_trace(), "--csv", tmp_path / "new" / "tables")
    assert code == 0
    tables = {
        path.stem: list(csv.DictReader(path.read_text().splitlines()))
        for path in (tmp_path / "new" / "tables").iterdir()
    }
    assert {name: len(rows) for name, rows in tables.items()} == {
        "operator_details": 8,
        "kernel_details": 12,
        "memory_record": 3,
        "step_trace_time": 4,
    }
    assert out.count("wrote ") == 4
    program_op = tables["operator_details"][0]
    assert (program_op["op"], program_op["step"]) == ("npu::program model", "decode 1")
    assert (program_op["host_total_us"], program_op["device_total_us"]) == (
        "40000.000",
        "38000.000",
    )
    assert tables["operator_details"][1]["fallbacks"] == "1"
    layer = tables["kernel_details"][1]
    assert (layer["category"], layer["program"], layer["duration_us"]) == (
        "layer",
        "model",
        "36000.000",
    )
    step = tables["step_trace_time"][0]
    assert (step["computing_us"], step["copying_not_overlapped_us"], step["free_us"]) == (
        "38000.000",
        "1000.000",
        "11000.000",
    )
    assert tables["memory_record"][1]["change_bytes"] == str(64 << 20)


@pytest.mark.parametrize(
    "words, code",
    [
        (["summary", "none.json"], "trace-unreadable"),
        (["summary", __file__], "trace-invalid"),
        (["summary", "{trace}", "--top", "-1"], "summary-option"),
        (["compare", "{trace}"], "compare-files"),
        (["compare", "{trace}", "{trace}", "{trace}"], "compare-files"),
        (["compare", "{trace}", "--base", "{trace}"], "compare-files"),
        (["compare", "{trace}", "{empty}"], "trace-empty"),
        (["memory", "{bare}"], "trace-no-memory"),
        (["memory", "{trace}", "-o", "m.pdf"], "picture-format"),
        (["memory", "{trace}", "-o", "none/m.svg"], "output-unwritable"),
        (["stats", "{trace}", "--csv", "{trace}"], "output-unwritable"),
    ],
)
def test_wrong_request_is_one_line_and_exit_code_2(capsys, make_trace, write_trace, words, code):
    names = {
        "trace": make_trace("a.json"),
        "bare": make_trace("b.json", memory=False),
        "empty": write_trace(name="c.json"),
    }
    exit_code, out, err = run(capsys, *(word.format(**names) for word in words))
    assert (exit_code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.endswith(f"[{code}]\n")
