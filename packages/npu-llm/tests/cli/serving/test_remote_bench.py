import json

from npu_llm.cli import main


def test_a_table_and_json_tell_how_a_server_answers(backwards, tmp_path, capsys):
    file = tmp_path / "figures.json"
    code = main(["bench", "--server", backwards.url, "--clients", "2", "--requests", "6",
                 "--prompt", "3,5", "--new", "7", "--json", str(file)])  # fmt: skip
    captured = capsys.readouterr()
    assert code == 0
    for word in (
        "time to first token",
        "time per token",
        "median",
        "99 %",
        "6 answers",
        "finish reasons: 6 stop",
    ):
        assert word in captured.out
    found = json.loads(file.read_text())
    assert found["answers"] == len(backwards.bodies) == 6
    assert 18 <= found["tokens"] <= 30
    assert found["cached_tokens"] == 24
    assert found["finish_reasons"] == {"stop": 6}
    assert found["tokens_per_s"] > 0
    assert {body["max_tokens"] for body in backwards.bodies} == {7}


def test_lengths_and_charts_that_do_not_fit_are_refused(backwards, tmp_path, capsys):
    line = ["bench", "--server", backwards.url]
    for more, code in (
        (["--prompt", "9,3"], "length-range"),
        (["--new", "1,2,3"], "length-range"),
        (["--plot", str(tmp_path / "x.svg")], "remote-option"),
    ):
        assert main([*line, *more]) == 2
        assert f"[{code}]" in capsys.readouterr().err
    assert backwards.bodies == []
