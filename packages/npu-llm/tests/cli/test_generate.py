import json
import re

import pytest

from npu_llm.cli import generate, session
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


@pytest.mark.parametrize(
    "words",
    [
        ["{model}", "the quick", "-n", "3"],
        ["{model}", "-n", "3", "the quick"],
        ["-m", "{model}", "-n", "3", "the quick"],
        ["-n", "3", "{model}", "-p", "the quick"],
        ["-p", "the quick", "-m", "{model}", "-n", "3"],
    ],
    ids=" ".join,
)
def test_model_and_prompt_as_people_type_them(checkpoint, monkeypatch, words):
    given = []
    monkeypatch.setattr(generate, "generate", lambda options: given.append(options) or 0)
    generate.main([word.format(model=checkpoint) for word in words])
    (options,) = given
    assert (options.model, options.prompt) == (str(checkpoint), "the quick")
    assert options.max_new_tokens == 3


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "PROMPT is required"),
        (["-p", "a", "m", "n"], "must be given once, got 'n' as well"),
        (["-m", "m", "n", "a"], "must be given once, got 'n' as well"),
        (["-m", "m", "--model", "n", "a"], "argument -m/--model: must be given once, got m and n"),
    ],
    ids=str,
)
def test_a_model_or_prompt_too_many_is_an_error_of_usage(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        generate.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_answer_that_was_cut_is_marked(in_process):
    _, out, err = in_process("generate", "--greedy", "--json", "-n", "3", "the quick")
    assert json.loads(out)["finish_reason"] == "length"
    assert re.search(r"finish reason\W+length: the answer was cut", err)
    assert err.endswith("The answer was cut after 3 tokens; -n N allows more.\n")


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
