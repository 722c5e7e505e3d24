import pytest

from npu_llm.errors import OptionError, ServerError
from npu_llm.serving.client import Connection, Percentiles, Work, measure

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
    assert (answer.answer_tokens, answer.finish) == (11, "length")
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


def test_all_questions_are_answered_and_counted(server):
    done = []
    work = Work(clients=3, requests=10, prompt_words=(2, 9), new_tokens=(3, 7), model="plain")
    report = measure(Connection(server.url), work, on_answer=done.append)
    assert (report.answers, report.refusals, done) == (10, {}, [*range(1, 11)])
    assert 10 <= report.tokens <= 70
    assert report.tokens_per_s == pytest.approx(report.tokens / report.seconds)
    first = report.time_to_first_token
    assert 0 < first.p50_s <= first.p95_s <= first.p99_s <= report.whole.p99_s


def test_refusals_are_counted_by_what_was_said(serve):
    with serve("plain", engine={"max_num_seqs": 1, "max_waiting": 1}) as running:
        work = Work(clients=8, requests=24, prompt_words=(2, 4), new_tokens=(30, 40))
        report = measure(Connection(running.url), work)
    (text,) = report.refusals
    assert "server-busy" in text
    assert report.answers + report.refusals[text] == 24


def test_a_server_that_refuses_all_is_an_error(server):
    work = Work(clients=2, requests=3, model="nothing")
    with pytest.raises(ServerError, match="unknown-model"):
        measure(Connection(server.url), work)


def test_percentiles_are_times_that_were_measured():
    times = [float(number) for number in range(200, 0, -1)]
    assert Percentiles.of(times) == Percentiles(101.0, 191.0, 199.0)
    assert Percentiles.of([3.0]) == Percentiles(3.0, 3.0, 3.0)
    assert Percentiles.of([]) is None
