import pytest
import torch

from npu_llm.steps import block_layout as module
from npu_llm.steps.block_layout import block_layout
from npu_ops.kernel_programs.execution import Execution, kernel_sets


@pytest.fixture(autouse=True)
def forget():
    block_layout.cache_clear()
    yield
    block_layout.cache_clear()


def test_each_way_to_store_keys_and_values_has_its_own():
    assert len({block_layout(cache) for cache in ("float32", "bfloat16", "u8")}) == 3


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "u8"])
def test_the_same_layout_has_the_same_digest(cache, monkeypatch):
    found = block_layout(cache)
    for kernel_set in kernel_sets():
        block_layout.cache_clear()
        monkeypatch.setattr(
            module,
            "Execution",
            lambda *arguments, at=kernel_set, **named: Execution(
                *arguments, **named, kernel_set=at
            ),
        )
        assert block_layout(cache) == found


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "u8"])
def test_another_order_of_bytes_has_another_digest(cache, monkeypatch):
    found = block_layout(cache)

    class Swapped(Execution):
        """Has two channels in each other's place."""

        def read_blocks(self, ids):
            content = super().read_blocks(ids)
            wide = content.view(torch.int32)
            wide[:, [3, 4]] = wide[:, [4, 3]]
            return content

    monkeypatch.setattr(module, "Execution", Swapped)
    block_layout.cache_clear()
    assert block_layout(cache) != found
