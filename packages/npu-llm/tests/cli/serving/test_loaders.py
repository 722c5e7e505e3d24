import asyncio
import queue

import pytest
import torch

from npu_llm import NPUModelForCausalLM, NPUModelForSpeechSeq2Seq
from npu_llm.cli.serving.loaders import make_registry
from npu_llm.cli.serving.serve import make_parser
from npu_llm.cli.terminal import Display
from npu_llm.engine.engine import EngineOptions
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Finished
from npu_llm.errors import ModelError, OptionError
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedSpeech

PROMPT = [5, 9, 14, 20]


@pytest.fixture
def registry(checkpoint, shared):
    """registry(*options): the models that a command with these would serve."""

    def make(*options, model=checkpoint):
        given = ["--model", str(model), "--cache-dir", str(shared.cache_dir(model))]
        given += ["--dtype", "float32"]
        parsed = make_parser().parse_args([*given, "--alias", "base", *options])
        return make_registry(parsed, EngineOptions(cache_bytes=1 << 20), Display())

    return make


async def answer(registry, name, count=12):
    told = queue.SimpleQueue()
    async with registry.use(name, ServedModel) as served:
        params = SamplingParams(max_new_tokens=count, temperature=0.0)
        served.engine.submit(PROMPT, params, told.put)
        tokens = []
        while not isinstance(event := await asyncio.to_thread(told.get), Finished):
            tokens.append(event.id)
        assert event.error is None
        return tokens


def test_adapters_are_models_of_their_own(registry, checkpoint, shared, save_adapter):
    path = save_adapter("loud", "self_attn.q_proj", "mlp.down_proj")
    given = registry("--adapter", f"loud={path}", "--adapter", f"half={path}:0.5")
    assert given.names == ["base", "loud", "half"]
    assert given.parents == {"loud": "base", "half": "base"}

    async def work():
        found = dict(
            zip(
                given.names,
                await asyncio.gather(*(answer(given, name) for name in given.names)),
                strict=True,
            )
        )
        assert given.loaded["loud"].model is not given.loaded["base"].model
        await given.close(grace_s=0)
        return found

    found = asyncio.run(work())
    model = shared.load(NPUModelForCausalLM, checkpoint, dtype="float32")
    model.load_adapter(path, "loud")
    for name, scale in (("base", 0.0), ("loud", 1.0), ("half", 0.5)):
        model.set_adapter({"loud": scale} if scale else None)
        ids = torch.tensor([PROMPT])
        expected = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12,
            do_sample=False, eos_token_id=None,
        )  # fmt: skip
        assert found[name] == expected[0, len(PROMPT) :].tolist(), name
    assert len({tuple(tokens) for tokens in found.values()}) == 3


def test_adapters_that_cannot_be_used_are_told_at_once(registry, save_adapter, tmp_path):
    with pytest.raises(ModelError, match="adapter-unreadable"):
        registry("--adapter", f"x={tmp_path / 'nothing'}")
    path = save_adapter("x", "self_attn.q_proj")
    with pytest.raises(OptionError, match="model-alias"):
        registry("--adapter", f"base={path}")
    with pytest.raises(OptionError, match=r"got 2\. .*\[adapter-model\]"):
        registry("--model", "someone/another", "--adapter", f"x={path}")
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--adapter", "no-name"])


def test_a_model_that_alone_is_above_the_bound_is_told_at_once(registry):
    with pytest.raises(
        OptionError, match=r"MB for base with its KV cache, got 1 MB.*\[models-memory\]"
    ):
        registry("--max-memory", "1")
    assert list(registry("--max-memory", "4").loaded) == ["base"]


def test_an_entry_of_the_compile_cache_is_refused_in_one_sentence(registry, cache_dir):
    registry()
    entry = next(folder for folder in cache_dir.iterdir() if (folder / "entry.json").is_file())
    with pytest.raises(ModelError, match=r"entry of the compile cache.*\[cache-entry\]"):
        registry(model=entry)


def test_a_model_of_speech_starts_with_what_it_needs(registry, shared, whisper):
    shared.load(NPUModelForSpeechSeq2Seq, whisper, dtype="float32")
    given = registry(model=whisper)
    served = given.loaded["base"]
    assert isinstance(served, ServedSpeech)
    assert served.transcriber.rate == 16_000
    served.close()
