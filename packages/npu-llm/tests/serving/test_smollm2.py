"""A server with the real SmolLM2: many concurrent clients get the same answers as one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from npu_llm.engine.engine import EngineOptions
from npu_llm.serving.models.served_model import ServedModel

CLIENTS = 32
SYSTEM = "You are a helpful assistant who answers each question in one short and simple sentence."
# Half of them begin alike.
QUESTIONS = [
    [{"role": "system", "content": SYSTEM}] * (number % 2)
    + [{"role": "user", "content": f"Write a sentence about the number {number}."}]
    for number in range(CLIENTS)
]


@pytest.fixture(scope="module")
def server(smollm, serve_loaders):
    def load():
        model = smollm()
        # A cache for a third of the concurrent requests: sequences are preempted, and prefixes
        # evicted.
        cache_bytes = 48 * model.block_pool.store.block_bytes
        options = EngineOptions(max_num_seqs=CLIENTS, cache_bytes=cache_bytes)
        return ServedModel("smollm2", model, options)

    with serve_loaders({"smollm2": load}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.client(timeout=600, max_retries=2)


def ask(client, messages, **more):
    return client.chat.completions.create(
        model="smollm2", messages=messages, temperature=0, extra_body={"ignore_eos": True},
        **{"max_tokens": 28, **more},
    )  # fmt: skip


def tokens_of(answer):
    return [one.token for one in answer.choices[0].logprobs.content]


def leave(client, messages, after):
    """Asks for a long answer, and goes after some of its pieces."""
    with ask(client, messages, stream=True, max_tokens=400) as stream:
        for _ in zip(range(after), stream, strict=False):
            pass


@pytest.mark.long
def test_32_clients_at_once_get_token_by_token_what_one_gets(server, client):
    alone = [tokens_of(ask(client, messages, logprobs=True)) for messages in QUESTIONS]
    assert len({tuple(tokens) for tokens in alone}) > 16
    state = server.model("smollm2").engine.state
    put_back = state().preemptions
    with ThreadPoolExecutor(CLIENTS + 8) as threads:
        left = [threads.submit(leave, client, QUESTIONS[-1], 1 + 3 * n) for n in range(8)]
        answers = list(threads.map(lambda one: ask(client, one, logprobs=True), QUESTIONS))
        for one in left:
            one.result()
    assert [tokens_of(answer) for answer in answers] == alone
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
    assert max(cached) >= 16
    assert state().preemptions > put_back


def test_an_answer_makes_sense_and_has_its_form(client):
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0, max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
    )  # fmt: skip
    assert "Paris" in answer.choices[0].message.content
