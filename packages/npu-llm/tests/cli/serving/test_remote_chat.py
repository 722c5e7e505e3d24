import io

import pytest

from npu_llm.cli import main


@pytest.fixture
def talk(backwards, tmp_path, monkeypatch, capsys):
    """talk(lines, *options): exit code, standard output, standard error."""

    def run(lines, *options):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        code = main(["chat", "--server", backwards.url, "--cache-dir", str(tmp_path), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_turns_and_commands_work_with_a_server(talk, backwards):
    lines = "a b c\n/undo\nd e\n/system Be brief.\n/retry\n/save x\n/help\n"
    code, out, err = talk(lines, "--greedy", "--seed", "3", "--max-new-tokens", "9")
    assert (code, out) == (0, "c b a \ne d \ne d \n")
    last = backwards.bodies[-1]
    assert last["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "d e"}
    ]  # fmt: skip
    assert (last["model"], last["temperature"], last["seed"], last["max_tokens"]) == (
        "echo", 0, 3, 9
    )  # fmt: skip
    assert "Read 5 of 9 tokens and wrote 2, the first after " in err
    assert "the answer was cut" not in err
    refusal = "/save and /load need a text model on this machine."
    assert refusal in err
    assert "/save" not in err.split(refusal)[1]  # nor in the list of /help


def test_the_conversation_is_sent_each_time(talk, backwards):
    talk("one\ntwo\n", "--model", "other")
    assert [m["content"] for m in backwards.bodies[-1]["messages"]] == ["one", "one ", "two"]
    assert backwards.bodies[-1]["model"] == "other"


def test_settings_and_models_of_a_server(talk, backwards):
    lines = (
        "/set temperature 0.5\n/set max_new_tokens 7\n/model nowhere\n/model echo\na b\n/stats\n"
    )
    code, _, err = talk(f"{lines}/stats\n")
    assert code == 0
    last = backwards.bodies[-1]
    assert (last["temperature"], last["max_tokens"], last["model"]) == (0.5, 7, "echo")
    assert "[chat-model]" in err
    assert "model: echo" in err
    assert "and wrote 2, " in err.split("[chat-model]")[1]


def test_what_does_not_go_with_a_server_is_refused(talk):
    code, _, err = talk("", "--session", "file")
    assert code == 2
    assert "[remote-option]" in err


def test_a_server_that_is_not_there_is_told(capsys):
    assert main(["chat", "--server", "http://127.0.0.1:9"]) == 2
    assert "[server-unreachable]" in capsys.readouterr().err
