import pytest

from npu_llm.errors import OptionError, ServerError
from npu_llm.serving.client.connection import Connection

ASKED = [{"role": "user", "content": "the quick brown fox"}]


def test_a_chat_is_the_same_as_by_other_clients(server, client):
    pieces = []
    answer = Connection(server.url).chat(
        ASKED, model="plain", temperature=0, max_tokens=11, on_text=pieces.append
    )
    other = client.chat.completions.create(
        model="plain", messages=ASKED, temperature=0, max_tokens=11
    )
    assert answer.text == other.choices[0].message.content == "".join(pieces)
    assert (answer.tokens, answer.finish) == (11, "length")
    assert answer.prompt_tokens == other.usage.prompt_tokens
    assert 0 < answer.time_to_first_token_s < answer.ended_s - answer.started_s + 1e-9
    assert answer.time_per_token_s > 0


def test_an_interrupt_ends_an_answer_and_keeps_what_came(serve):
    with serve("long") as running:
        pieces = []

        def interrupt(text):
            pieces.append(text)
            if len(pieces) == 3:
                raise KeyboardInterrupt

        answer = Connection(running.url).chat(
            ASKED, max_tokens=60_000, logit_bias={"2": -100}, on_text=interrupt
        )
        assert (answer.finish, answer.text) == ("cancelled", "".join(pieces))


def test_what_the_server_refuses_is_told(server):
    connection = Connection(f"{server.url}/v1")
    assert connection.models() == ["plain", "tools"]
    with pytest.raises(ServerError, match=r"request-field.*\[server-refused\]"):
        connection.chat(ASKED, temperature=-3)
    with pytest.raises(ServerError, match=r"404.*\[server-refused\]|unknown-path"):
        Connection(f"{server.url}/elsewhere").models()


def test_addresses_that_lead_nowhere():
    with pytest.raises(ServerError, match="server-unreachable"):
        Connection("http://127.0.0.1:9", timeout_s=5).models()
    for url in ("127.0.0.1:8000", "ftp://x", "http://"):
        with pytest.raises(OptionError, match="server-url"):
            Connection(url)
