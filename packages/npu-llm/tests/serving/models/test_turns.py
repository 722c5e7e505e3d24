import asyncio

import pytest

from npu_llm.errors import ServerError
from npu_llm.serving.models.turns import Turns


def test_more_than_it_takes_are_refused():
    async def work():
        turns = Turns("t", most_waiting=1)
        with turns.place():
            with (
                pytest.raises(ServerError, match=r"takes 1 requests.*\[server-busy\]"),
                turns.place(),
            ):
                pass
            assert await turns.do(lambda: 5) == 5
        assert turns.waiting == 0
        turns.close()
        with pytest.raises(ServerError, match="server-stopping"):
            await turns.do(lambda: 5)

    asyncio.run(work())
