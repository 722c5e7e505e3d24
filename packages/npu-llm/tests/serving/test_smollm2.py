"""A server with the real SmolLM2: many clients at once get what one gets."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from npu_llm import NPUModelForCausalLM
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.scheduling.engine import EngineOptions

pytestmark = pytest.mark.slow

QUESTIONS = [f"Write a sentence about the number {number}." for number in range(12)]


@pytest.fixture(scope="module")
def client(weights, smollm_cache, serve_loaders):
    def load():
        model = NPUModelForCausalLM.from_pretrained(
            weights, dtype="float32", cache_dir=smollm_cache
        )
        # A cache for a third of what is asked at once: sequences are put back meanwhile.
        cache_bytes = 40 * model.block_pool.store.block_bytes
        options = EngineOptions(most_running=12, cache_bytes=cache_bytes)
        return ServedModel("smollm2", model, options)

    with serve_loaders({"smollm2": load}) as running:
        yield running.client(timeout=600, max_retries=2)


def ask(client, question):
    answer = client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": question}], temperature=0,
        max_tokens=48,
    )  # fmt: skip
    return answer.choices[0].message.content


def test_many_at_once_get_what_one_gets(client):
    alone = [ask(client, question) for question in QUESTIONS]
    assert len(set(alone)) > 6
    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda question: ask(client, question), QUESTIONS))
    assert together == alone


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
