import json
import sys

SIZES = ("--prompt", "4,9", "--new", "3", "--repeats", "1", "--warm-up", "0")


def test_table_and_files_have_the_same_figures(in_process, tmp_path):
    file, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    arguments = (*SIZES, "--batch", "1,2", "--json", str(file), "--plot", str(plot))
    code, out, err = in_process("bench", "--dtype", "float32", *arguments)
    assert code == 0, err
    said = json.loads(file.read_text())
    assert (said["precision"], len(said["records"])) == ("float32", 4)
    for record in said["records"]:
        assert f"{record['decode_tokens_per_s']:,.1f}" in out
        assert f"{record['first_token_s'] * 1e3:,.1f}" in out
    assert "TTFT" in out
    assert "measuring: 4 answers in " in err
    assert plot.read_text().startswith("<svg")
    assert "power: measured on" in err or "power: cannot be read" in err


def test_model_without_a_tokenizer_is_measured(in_process, checkpoint, tmp_path):
    import shutil

    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, tmp_path)
    code, out, err = in_process("bench", *SIZES, model=tmp_path)
    assert code == 0, err
    assert "decode" in out


def test_place_that_cannot_take_the_result_is_said_first(in_process, tmp_path):
    for place in (tmp_path, tmp_path / "absent" / "file.json"):
        code, out, err = in_process("bench", f"--json={place}")
        assert (code, out) == (2, "")
        assert "[output-file]" in err
        assert "measured" not in err


def test_plot_without_matplotlib_is_refused_first(in_process, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = in_process("bench", *SIZES, "--plot", str(tmp_path / "bench.svg"))
    assert (code, out) == (2, "")
    assert "pip install 'npu-llm[plot]'" in err
    assert "[plot-library]" in err
    assert "measured" not in err


def test_size_past_the_context_is_an_error(in_process):
    code, out, err = in_process("bench", "--prompt", "250", "--new", "50")
    assert (code, out) == (2, "")
    assert "[bench-size]" in err.splitlines()[-1]
