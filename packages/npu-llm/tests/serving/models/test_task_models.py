import asyncio

import pytest
import torch

from npu_llm.errors import ServerError
from npu_llm.serving.models.task_models import Executor, ServedEncoder


def test_vectors_that_are_normalized_stay_so_when_cut(encoder, monkeypatch):
    monkeypatch.setitem(encoder.__dict__, "_recorded", ("mean", True))
    served = ServedEncoder("e", encoder)
    found = asyncio.run(served.embed(["the cat sat", "mat"], dimensions=12))
    served.close()
    assert found.values.shape == (2, 12)
    assert torch.allclose(found.values.norm(dim=1), torch.ones(2), atol=1e-6)
    whole = encoder.encode(["the cat sat", "mat"])[:, :12]
    assert torch.allclose(found.values, torch.nn.functional.normalize(whole), atol=1e-5)


def test_a_long_list_lets_others_take_turns(encoder, monkeypatch):
    served = ServedEncoder("e", encoder)
    sizes = []
    real = encoder.encode_tokens
    monkeypatch.setattr(
        encoder, "encode_tokens", lambda some: sizes.append(len(some)) or real(some)
    )

    async def work():
        long = asyncio.create_task(served.embed(["cat"] * 200))
        await asyncio.sleep(0)
        await served.embed(["dog"] * 3)
        return await long

    assert asyncio.run(work()).values.shape == (200, 32)
    served.close()
    assert sizes.index(3) < len(sizes) - 1
    assert sorted(sizes) == [3, 8, 64, 64, 64]


def test_it_refuses_when_it_has_ended(encoder):
    served = ServedEncoder("e", encoder)
    assert served.is_alive
    served.close()
    assert not served.is_alive
    with pytest.raises(ServerError, match="server-stopping"):
        asyncio.run(served.embed(["cat"]))


def test_more_than_it_takes_are_refused():
    async def work():
        executor = Executor("t", max_waiting=1)
        with executor.slot():
            with (
                pytest.raises(ServerError, match=r"takes at most 1 requests.*\[server-busy\]"),
                executor.slot(),
            ):
                pass
            assert await executor.run(lambda: 5) == 5
        assert executor.waiting == 0
        executor.close()
        with pytest.raises(ServerError, match="server-stopping"):
            await executor.run(lambda: 5)

    asyncio.run(work())
