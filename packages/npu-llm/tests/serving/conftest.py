"""Small models behind an engine and a server, and OpenAI's client."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import openai
import pytest
import torch
import uvicorn
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from npu_llm import NPUModelForCausalLM, NPUModelForFeatureExtraction
from npu_llm.engine.engine import EngineOptions
from npu_llm.serving.http.app import make_app
from npu_llm.serving.http.server import Server, protocol_with_header_timeout
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.registry import ModelRegistry
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedEncoder

SHOWS_EFFORT = "{# <think> #}{{ reasoning_effort }}{% if enable_thinking is false %}no{% endif %}"
SHOWS_TOOLS = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"


@pytest.fixture(scope="session")
def speakers(saved_speaker, shared):
    """speakers(name): a model that can be served, in float32; "tools" has a template for those."""
    kinds = {
        "plain": {"context": 512},
        "tools": {"context": 1024, "before": SHOWS_TOOLS},
        "long": {"context": 65536},
        "thinks": {"context": 512, "before": SHOWS_EFFORT},
    }

    def load(name):
        folder = saved_speaker(num_key_value_heads=2, **kinds[name])
        return shared.load(NPUModelForCausalLM, folder, dtype="float32")

    return load


WORDS = ("<pad>", "<unk>", "<cls>", "<sep>", "the", "cat", "dog", "sat", "mat", "where", "is")


@pytest.fixture(scope="session")
def encoder(shared):
    """A small BERT with random weights, of 40 tokens; its vectors may be cut to 12 numbers."""
    folder = shared.checkpoint("encoder", _save_encoder)
    return shared.load(NPUModelForFeatureExtraction, folder)


def _save_encoder(folder):
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=44, max_position_embeddings=40, matryoshka_dimensions=[12, 32],
    )  # fmt: skip
    model = BertModel(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>", special_tokens=[("<cls>", 2), ("<sep>", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", cls_token="<cls>",
        sep_token="<sep>", model_max_length=40,
    ).save_pretrained(folder)  # fmt: skip


class Served:
    """A server that runs, and clients for it."""

    def __init__(self, server, registry, port, scheme):
        self.registry = registry
        self.port = port
        self.url = f"{scheme}://127.0.0.1:{port}"
        self._server = server
        self._clients = []

    def client(self, **options):
        options = {"api_key": "none", "max_retries": 0, "timeout": 60} | options
        made = openai.OpenAI(base_url=f"{self.url}/v1", **options)
        self._clients.append(made)
        return made

    def close_clients(self):
        """Closes their sockets, which the garbage collector would report later."""
        for made in self._clients:
            made.close()

    def model(self, name="plain"):
        return self.registry.loaded[name]


@contextmanager
def serving(loaders, **settings):
    """Runs a server for the block."""
    names = ("kinds", "idle_s", "max_loaded")
    registry_settings = {name: settings.pop(name) for name in names if name in settings}
    registry = ModelRegistry(loaders, **registry_settings)
    traces = settings.pop("traces", None)
    chosen = Settings(**{"grace_s": 0.5} | settings)
    config = uvicorn.Config(
        make_app(registry, chosen, traces),
        port=0,
        http=protocol_with_header_timeout(chosen.header_timeout_s),
        log_config=None,
        ssl_certfile=chosen.tls_cert,
        ssl_keyfile=chosen.tls_key,
    )
    server = Server(config, registry, grace_s=chosen.grace_s)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    served = Served(server, registry, port, "http" if chosen.tls_cert is None else "https")
    try:
        yield served
    finally:
        served.close_clients()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def serve_loaders():
    """serve_loaders(loaders, **settings): a context manager with a server of these models."""
    return serving


@pytest.fixture(scope="session")
def serve(speakers):
    """serve(*names, engine={}, **settings): a context manager with a server of these models."""

    def start(*names, engine=None, **settings):
        options = EngineOptions(**(engine or {}))
        loaders = {n: lambda n=n: ServedModel(n, speakers(n), options) for n in names}
        return serving(loaders, **settings)

    return start


@pytest.fixture(scope="session")
def mixed(speakers, encoder):
    """A server of a model that writes, "plain", and one that makes vectors, "vectors"."""
    loaders = {
        "plain": lambda: ServedModel("plain", speakers("plain"), EngineOptions()),
        "vectors": lambda: ServedEncoder("vectors", encoder),
    }
    with serving(loaders, kinds={"vectors": ServedEncoder}) as running:
        yield running


@pytest.fixture(scope="session")
def server(serve):
    """A server of the models "plain" and "tools"."""
    with serve("plain", "tools") as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    return server.client()
