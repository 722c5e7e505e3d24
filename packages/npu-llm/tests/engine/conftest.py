"""Small models behind an engine."""

from __future__ import annotations

import queue

import pytest
import torch

from npu_llm import NPUModelForCausalLM
from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Finished


class Answers:
    """Events of an engine for some requests."""

    def __init__(self, engine):
        self.engine = engine
        self.told = []

    def ask(self, prompt, count, **options):
        """Submits a request, greedy by default; returns its handle."""
        events = queue.SimpleQueue()
        self.told.append(events)
        params = SamplingParams(max_new_tokens=count, **{"temperature": 0.0, **options})
        return self.engine.submit(prompt, params, events.put)

    def wait(self, index=-1):
        """Returns the tokens of one request, and its end."""
        tokens = []
        while not isinstance(event := self.told[index].get(timeout=60), Finished):
            tokens.append(event)
        return tokens, event

    def ids(self, index=-1):
        return [token.id for token in self.wait(index)[0]]


@pytest.fixture
def engine_of():
    """engine_of(model, **options): Answers of an engine that ends with the test."""
    engines = []

    def start(model, **options):
        engines.append(Engine(model, EngineOptions(**options)).start())
        return Answers(engines[-1])

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def fresh(llama):
    """fresh(): the small llama on kernels, with a separate pool."""
    llama.ours(pipeline="kernels")  # compiles it once

    def make():
        return NPUModelForCausalLM.from_pretrained(
            llama.folder, dtype="float32", cache_dir=llama.cache_dir, pipeline="kernels"
        )

    return make


@pytest.fixture(scope="session")
def talkative_model(saved_tiny, shared):
    """A llama with a context for answers of seconds."""
    folder = saved_tiny("llama", max_position_embeddings=65536)
    return shared.load(NPUModelForCausalLM, folder, dtype="float32")


@pytest.fixture(scope="session")
def generated():
    """generated(model, prompt, count): the tokens that the model's generate adds, greedily."""

    def generate(model, prompt, count, **options):
        ids = torch.tensor([prompt])
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
            do_sample=False, **options,
        )  # fmt: skip
        return output[0, len(prompt) :].tolist()

    return generate
