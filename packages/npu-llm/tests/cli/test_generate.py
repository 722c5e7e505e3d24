import json
import re

import pytest

from npu_llm.cli import session
from npu_llm.tokenizer import chat_template


def test_answer_alone_goes_to_standard_output(command):
    done = command("generate", "--greedy", "--max-new-tokens", "12", "the quick brown")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    for word in ("device", "precision", "compile time", "tokens/s", "peak memory", "to first"):
        assert word in done.stderr
        assert word not in done.stdout
    again = command("generate", "--greedy", "--max-new-tokens", "12", "the quick brown")
    assert again.stdout == done.stdout
    assert "started from the compile cache" in again.stderr
    assert "from cache" in again.stderr
    assert "loading weights" not in again.stderr


def test_device_and_reason_come_first(in_process):
    _, _, err = in_process("generate", "--greedy", "--max-new-tokens", "2", "the")
    first = err.splitlines()[0]
    assert re.match(r"device: \w+, .+ \(.+\)$", first)


def test_prompt_from_standard_input(command):
    arguments = ("generate", "--greedy", "--max-new-tokens", "6")
    typed = command(*arguments, "the lazy dog")
    piped = command(*arguments, "-", text="the lazy dog", HF_HUB_OFFLINE="1")
    assert typed.returncode == piped.returncode == 0, piped.stderr
    assert typed.stdout == piped.stdout


def test_sampling_with_a_seed_repeats(in_process):
    arguments = ("generate", "--max-new-tokens", "20", "--temperature", "2.0", "--seed", "5", "fox")
    assert in_process(*arguments)[1] == in_process(*arguments)[1]
    other = (*arguments[:-2], "6", "fox")
    assert in_process(*arguments)[1] != in_process(*other)[1]


def test_table_counts_tokens(in_process):
    _, _, err = in_process(
        "generate", "--greedy", "--max-new-tokens", "7", "--dtype", "float32", "fox"
    )
    assert re.search(r"answer\D+\d+ tokens", err)
    assert re.search(r"precision\W+float32", err)
    assert re.search(r"peak memory\D+[\d,]+ MB", err)


def test_an_answer_is_held_to_the_schema_in_a_file(in_process, tmp_path):
    file = tmp_path / "schema.json"
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    file.write_text(json.dumps({**schema, "additionalProperties": False}))
    code, out, err = in_process("generate", "--greedy", "--json-schema", str(file), "fox")
    assert (code, json.loads(out)) == (0, {"a": 7}), err


def test_a_file_without_a_schema_is_refused(in_process, tmp_path):
    for text in ("[1]", "{"):
        (tmp_path / "schema.json").write_text(text)
        code, _, err = in_process("generate", "--json-schema", str(tmp_path / "schema.json"), "fox")
        assert code == 2
        assert "[schema-file]" in err


def test_what_renders_the_prompt_starts_before_the_model(in_process, monkeypatch):
    class Seen(Exception):
        pass

    def start(*_: object) -> None:
        raise Seen(chat_template._renderer._process is not None)

    chat_template._renderer.end()
    monkeypatch.setattr(session, "start_plain", start)
    with pytest.raises(Seen, match="True"):
        in_process("generate", "Hello")
