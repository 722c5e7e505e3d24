import asyncio

import pytest

from npu_llm.errors import ModelError, ServerError
from npu_llm.serving.models.served_encoder import ServedEncoder
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.shelf import Shelf


class Loaded:
    def __init__(self, name, log):
        self.name, self._log = name, log
        log.append(f"+{name}")

    def close(self, *, grace_s=0.0):
        self._log.append(f"-{self.name}")


def shelf_of(log, names="abc", **settings):
    return Shelf({name: lambda name=name: Loaded(name, log) for name in names}, **settings)


def test_a_model_is_loaded_at_its_first_use_and_once():
    log = []

    async def work():
        shelf = shelf_of(log)
        assert log == []

        async def one(name):
            async with shelf.use(name, ServedModel) as served:
                return served.name

        names = await asyncio.gather(*(one(name) for name in ("b", "b", None, "b")))
        assert names == ["b", "b", "a", "b"]
        await shelf.close(grace_s=0)

    asyncio.run(work())
    assert sorted(log) == ["+a", "+b", "-a", "-b"]


def test_the_least_recently_used_makes_place_if_it_answers_nothing():
    log = []

    async def work():
        shelf = shelf_of(log, most_loaded=2)
        for name in ("a", "b", "a", "c"):
            await shelf.load(name)
        assert log == ["+a", "+b", "-b", "+c"]
        async with shelf.use("a", ServedModel), shelf.use("c", ServedModel):
            await shelf.load("b")
            assert set(shelf.loaded) == {"a", "b", "c"}

    asyncio.run(work())


def test_an_idle_model_is_unloaded():
    log = []

    async def work():
        shelf = shelf_of(log, idle_s=0.05)
        tidying = asyncio.create_task(shelf.unload_idle())
        async with shelf.use("a", ServedModel):
            await asyncio.sleep(0.2)
            assert log == ["+a"]
        await asyncio.sleep(0.3)
        assert log == ["+a", "-a"]
        await shelf.load("a")
        assert log[-1] == "+a"
        tidying.cancel()

    asyncio.run(work())


def test_a_model_of_another_name_is_refused():
    with pytest.raises(ModelError, match=r"a, b, c; got 'x'.*\[unknown-model\]"):
        shelf_of([]).check("x")


def test_each_endpoint_has_its_kind_of_model():
    log = []

    async def work():
        shelf = shelf_of(log, kinds={"b": ServedEncoder, "c": ServedEncoder})
        async with shelf.use(None, ServedEncoder) as served:
            assert served.name == "b"
        for name, kind in (("b", ServedModel), ("a", ServedEncoder)):
            with pytest.raises(ModelError, match=rf"got {name}.*\[model-endpoint\]"):
                async with shelf.use(name, kind):
                    pass
        lonely = shelf_of(log)
        with pytest.raises(ModelError, match=r"embeddings; got no such model.*has none"):
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
        shelf = Shelf({"a": load})
        for _ in range(2):
            with pytest.raises(ModelError, match="planted"):
                await shelf.load("a")

    asyncio.run(work())
    assert len(tries) == 2


def test_models_in_memory_stay_within_their_bound():
    log = []

    async def work():
        shelf = shelf_of(log, sizes={"a": 4, "b": 3, "c": 5}, most_bytes=8)
        for name in ("a", "b", "a", "c"):  # c needs the room of both
            await shelf.load(name)
        assert log == ["+a", "+b", "-b", "-a", "+c"]
        async with shelf.use("c", ServedModel):
            await shelf.load("b")
            with pytest.raises(ServerError, match=r"memory for a beside.*got c, .*server-memory"):
                async with shelf.use("b", ServedModel), shelf.use("a", ServedModel):
                    pass
        await shelf.load("a")
        assert set(shelf.loaded) == {"a"}

    asyncio.run(work())
