import pytest
import torch
from transformers import AttentionInterface

from npu_llm.cache_names import CACHE
from npu_llm.vision_language.grids import GRID, packed_attention, with_positions

pytestmark = pytest.mark.skipif(
    CACHE != "cache", reason="transformers before 5.24 lets such encoders compute all themselves"
)


def test_sequences_that_are_packed_attend_within_themselves(family):
    visual = family("Qwen2VL").model.visual
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, 10, 6, generator=generator) for _ in range(3))
    starts = torch.tensor([0, 3, 9, 10])
    before = visual.config._attn_implementation
    with packed_attention(visual, {GRID: torch.ones(1, 3)}) as beside:
        attend = AttentionInterface()[visual.config._attn_implementation]
        found, weights = attend(
            visual, query, key, value, None, scaling=0.5, cu_seq_lens_q=starts, max_length_q=6
        )
    assert beside == {"max_seqlen": 1}
    assert weights is None
    assert visual.config._attn_implementation == before
    pieces = [
        torch.nn.functional.scaled_dot_product_attention(
            *(one[:, :, start:end] for one in (query, key, value)), scale=0.5
        )
        for start, end in ((0, 3), (3, 9), (9, 10))
    ]
    torch.testing.assert_close(found, torch.cat(pieces, 2).transpose(1, 2))


def test_a_grid_says_where_windows_and_patches_lie(family):
    visual = family("Qwen2_5_VL").model.visual
    given = {"hidden_states": torch.zeros(24, 96), GRID: torch.tensor([[1, 4, 6]])}
    found = with_positions(visual, given)
    added = {"cu_seqlens", "position_ids", "window_index", "cu_window_seqlens"}
    assert found.keys() == given.keys() | added
    assert found["cu_seqlens"].tolist() == [0, 24]
    assert with_positions(visual, {"pixel_values": given["hidden_states"]}).keys() == {
        "pixel_values"
    }
