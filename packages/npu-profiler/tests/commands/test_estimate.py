import json
import sys
from pathlib import Path

import pytest

from npu_profiler import cli
from npu_profiler.commands import platform_command
from npu_profiler.reading import load_trace
from npu_profiler.reports.page.view import build_page, build_report

NOTE = "the compiler's estimate, not a measurement"
LAYERS = [
    {"name": "linear/MatMul", "type": "MatMul", "module": "blocks.0.up", "line": "model.py:7"},
    {"name": "gelu", "type": "Gelu", "module": "blocks.0", "line": "model.py:8"},
]
TASKS = [("DMA 0 DDR", 0, 0, 300_000), ("DPU", 0, 300_000, 200_000), ("SHAVE", 1, 500_000, 250_000)]
SCHEDULE = {
    "layers": LAYERS,
    "tasks": [
        {
            "row": row, "name": f"{LAYERS[layer]['name']}?t", "layer": layer, "parts": 4,
            "start_ns": start_ns, "duration_ns": duration_ns, "moved_bytes": None,
        }
        for row, layer, start_ns, duration_ns in TASKS
    ],
}  # fmt: skip
REPORT = {
    "target": "4000",
    "compiler": "2026.5.0-1",
    "estimate": {
        "latency_ms": 0.75,
        "shares": {"DMA": 71.2, "DPU": 27.0},
        "unmodeled": ["Convert"],
        "note": NOTE,
    },
    "schedule": "schedule.json",
}
# A stand-in for the command, which is another package's.
STAND_IN = f"""#!{sys.executable}
import json, sys
words = sys.argv[1:]
if words[3] == "9999":
    print("refused: the operation Erf")
    sys.exit(1)
check = {{"name": "Net", "report": json.loads({json.dumps(REPORT)!r})}}
with open("schedule.json", "w") as file:
    file.write({json.dumps(SCHEDULE)!r})
with open(words[words.index("--json") + 1], "w") as file:
    json.dump([check, check] if "llm" in sys.argv[0] else check, file)
with open(sys.argv[0] + ".log", "w") as file:
    print(*words[:-1], file=file)
"""


@pytest.fixture(autouse=True)
def commands(tmp_path, monkeypatch):
    """Stand-ins for npu-compiler and npu-llm; gives the arguments of the last call of one."""
    for name in ("npu-compiler", "npu-llm"):
        path = tmp_path / name
        path.write_text(STAND_IN)
        path.chmod(0o755)
    monkeypatch.setattr(platform_command.sys, "executable", str(tmp_path / "python"))
    monkeypatch.chdir(tmp_path)
    return lambda name: (tmp_path / f"{name}.log").read_text().strip()


def test_the_slow_layers_lead_and_every_table_is_labelled(commands, tmp_path, capsys):
    assert cli.main(["estimate", "model", "--target", "lunar-lake"]) == 0
    assert commands("npu-compiler") == "check model --target lunar-lake --half-budget 0 --json"
    shown = capsys.readouterr()
    assert "wrote estimate.json: npu-profiler view estimate.json shows it" in shown.err
    lines = shown.out.splitlines()
    assert f"NPU 4000: {NOTE}" in lines[2]
    assert f"layers by time: {NOTE}" in lines
    assert f"kinds of layers by time: {NOTE}" in lines
    assert "Net:                 0.750 ms; busy: DMA 71 %, DPU 27 %" in lines
    assert "  without Convert, which the compiler's cost model lacks" in lines
    at = lines.index(f"layers by time: {NOTE}")
    assert [" ".join(line.split()) for line in lines[at + 1 : at + 3]] == [
        "module layer type line total ms share DPU ms SHAVE ms DMA ms",
        "blocks.0.up linear/MatMul MatMul model.py:7 0.500 66.7 % 0.200 0.000 0.300",
    ]


def test_json_is_labelled_and_has_module_and_line(capsys):
    assert cli.main(["estimate", "model", "--target", "4000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["estimate"]["note"] == NOTE
    first = found["tables"]["layer"][0]
    assert (first["module"], first["line"]) == ("blocks.0.up", "model.py:7")
    assert (first["total_ns"], first["dpu_ns"]) == (500_000, 200_000)


def test_the_page_is_labelled_beside_the_rows_above_tables_and_in_the_summary(tmp_path):
    cli.main(["estimate", "model", "--target", "4000", "-o", "out.json.gz"])
    trace = load_trace(tmp_path / "out.json.gz")
    report = build_report(trace)
    assert all(table["title"].endswith(NOTE) for table in report["tables"].values())
    assert list(report["tables"]) == ["programs", "types of layers", "layers"]
    assert any(NOTE in line for line in report["summary"])
    assert "out.json.gz" in build_page(trace)
    assert {track.process for track in trace.tracks} == {f"npu:0 ({NOTE})"}


@pytest.mark.parametrize("view", ["program", "type", "layer", "module", "line"])
def test_summary_reads_the_file(view, capsys):
    cli.main(["estimate", "model", "--target", "4000"])
    capsys.readouterr()
    assert cli.main(["summary", "estimate.json", "--by", view]) == 0
    assert capsys.readouterr().out.splitlines()[7].endswith(f": {NOTE}")


def test_stats_has_a_row_for_each_layer_and_task_and_is_labelled(tmp_path, capsys):
    cli.main(["estimate", "model", "--target", "4000"])
    assert cli.main(["stats", "estimate.json", "--csv", "tables"]) == 0
    assert capsys.readouterr().out.endswith(f"times: {NOTE}\n")
    rows = Path("tables/kernel_details.csv").read_text().splitlines()[1:]
    kinds = [row.split(",")[2] for row in rows]
    assert sorted(kinds) == ["layer"] * 2 + ["program"] + ["task"] * 3


def test_compare_labels_each_estimate_and_finds_its_layers(capsys):
    cli.main(["estimate", "model", "--target", "4000"])
    capsys.readouterr()
    assert cli.main(["compare", "estimate.json", "estimate.json", "--all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"] == [f"estimate.json: {NOTE}"] * 2
    assert {row["name"] for row in found["tables"]["layer"]} == {"Net: linear/MatMul", "Net: gelu"}


def test_a_slower_estimate_fails_a_comparison_as_estimates_have_no_noise(tmp_path, capsys):
    cli.main(["estimate", "model", "--target", "4000"])
    slower = json.loads((tmp_path / "estimate.json").read_text())
    for event in slower["traceEvents"]:
        if event.get("cat") == "layer":
            event["args"]["duration_us"] *= 1.5
    (tmp_path / "slower.json").write_text(json.dumps(slower))
    capsys.readouterr()
    words = ["compare", "estimate.json", "slower.json", "--fail-above", "20"]
    assert cli.main(words) == 1
    shown = capsys.readouterr().out
    assert "noise: none, as all times are estimates" in shown
    assert "slower by more than 20 %: layer Net: linear/MatMul +50.0 %" in shown


def test_a_language_models_folder_is_compiled_by_npu_llm(commands, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert cli.main(["estimate", str(folder), "--target", "5010"]) == 0
    assert commands("npu-llm") == f"check {folder} --target 5010 --json"
    programs = list(load_trace("estimate.json").slices("program"))
    assert [(one.start_ns, one.duration_ns) for one in programs] == [
        (0, 750_000), (750_000, 750_000),
    ]  # fmt: skip


def test_a_refusal_is_shown_and_writes_nothing(tmp_path, capfd):
    assert cli.main(["estimate", "model", "--target", "9999"]) == 2
    error = capfd.readouterr().err
    assert "refused: the operation Erf" in error
    assert "[command-failed]" in error
    assert not (tmp_path / "estimate.json").exists()


def test_a_place_that_cannot_be_written_is_an_error_before_compiling(commands, tmp_path, capsys):
    words = ["estimate", "model", "--target", "4000", "-o", "absent/estimate.json"]
    assert cli.main(words) == 2
    assert "[output-unwritable]" in capsys.readouterr().err
    assert not (tmp_path / "npu-compiler.log").exists()


def test_without_npu_compiler_the_error_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "npu-compiler").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["estimate", "model", "--target", "4000"]) == 2
    assert "pip install dist/npu_compiler-*.whl. [command-missing]" in capsys.readouterr().err
