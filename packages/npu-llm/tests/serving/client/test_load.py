import pytest

from npu_llm.errors import ServerError
from npu_llm.serving.client.connection import Connection
from npu_llm.serving.client.load import Spread, Work, measure


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
    with serve("plain", engine={"most_running": 1, "most_waiting": 1}) as running:
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
    assert Spread.of(times) == Spread(101.0, 191.0, 199.0)
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert Spread.of([]) is None
