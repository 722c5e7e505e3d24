"""The static pipeline's cache of a generation from embeddings, in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from npu_compiler.lowering.context import MASKED
from npu_llm.kv_cache.cache import Relocation
from npu_llm.kv_cache.static import StaticCache, StepPrograms, slot_mask, slot_positions
from npu_llm.kv_cache.static_layout import KEY_POSITIONS, StaticSizes, StepSizes
from npu_llm.vision_language.language_cache import EMBEDS, MASK, POSITIONS, LanguageCache, Port

__all__ = ["StaticLanguageCache"]


class StaticLanguageCache(LanguageCache, StaticCache):
    """Keys and values in the host's memory, which programs of fixed sizes read and fill."""

    def __init__(
        self,
        programs: StepPrograms,
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        ports: Mapping[str, Port],
        context: int,
    ) -> None:
        """Makes an empty cache.

        Args:
            programs: the language model's.
            sizes: the sizes in which they come.
            relocation: how they learn which slots count.
            ports: positions and masks that they take.
            context: how many tokens prompt and answer may have.
        """
        StaticCache.__init__(self, programs, sizes, relocation=relocation)
        self._ports = dict(ports)
        self._context = context

    def _run_language(
        self, values: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        # Vectors stand where other models have tokens.
        named = {"input_ids" if name == EMBEDS else name: one for name, one in values.items()}
        named["logits_to_keep"] = torch.arange(tokens)
        return StaticCache.step(self, named, "cpu")

    def _inputs(
        self,
        sizes: StepSizes,
        index: int,
        at: int,
        count: int,
        wanted: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        past, padding = self._length + at, sizes.tokens - count
        found = {KEY_POSITIONS: slot_positions(past, sizes)}
        for name, tensor in values.items():
            if name == "input_ids":
                each = tensor[index : index + 1, at : at + count]
                each = torch.nn.functional.pad(each, (0, 0, 0, padding))
            elif name == POSITIONS:
                each = tensor[..., index : index + 1, at : at + count]
                each = _repeated(each, -1, padding)
            elif name.partition(".")[0] != MASK:
                continue
            elif tensor.dim() == 2:
                each = tensor[index : index + 1, : past + count]
                each = slot_mask(each, past, sizes, self._relocation)
            else:
                each = tensor[index : index + 1, :, at : at + count, : past + count]
                hidden = MASKED if each.is_floating_point() else 0
                each = slot_mask(_repeated(each, 2, padding), past, sizes, "mask", hidden=hidden)
            found[name] = each.contiguous()
        return found


def _repeated(tensor: torch.Tensor, dim: int, more: int) -> torch.Tensor:
    """Returns a tensor whose last part along a dimension stands there so many times more."""
    if not more:
        return tensor
    sizes = list(tensor.shape)
    sizes[dim] = more
    return torch.cat([tensor, tensor.narrow(dim, tensor.shape[dim] - 1, 1).expand(sizes)], dim)
