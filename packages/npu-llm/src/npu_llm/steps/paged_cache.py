"""The KV cache of the kernel pipeline: transformers' view of a batch on block tables."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from npu_llm.steps.paged_rows import PagedRows
from npu_llm.steps.step_cache import StepCache

__all__ = ["PagedCache"]


class PagedCache(StepCache):
    """The cache of one generation, in blocks of the pool that its program has."""

    def __init__(self, rows: PagedRows) -> None:
        """Takes an empty batch."""
        super().__init__()
        self._content = rows

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many tokens the cache holds, including padding."""
        return self._content.columns

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step; see StepCache.step.

        A step that fails or is interrupted leaves the cache as it was. Logits of padding are 0.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows; see also
                PagedRows.step.
            ContextError: [cache-blocks] if there is no room for the tokens.
        """
        on_host = {name: tensor.cpu() for name, tensor in values.items()}
        batch = on_host["input_ids"].shape[0]
        self._content.arrange(self.next_rows(batch).tolist())
        self._batch, self._rows = batch, None
        try:
            logits = self._content.step(on_host)
        except BaseException:
            if self._content.columns == 0:
                self.reset()  # an empty cache takes a batch of any size
            raise
        return logits if device == "cpu" else logits.to(device)

    @property
    def is_croppable(self) -> bool:
        """True: what comes after the tokens that are kept is overwritten."""
        return True

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._content.clear()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns what the cache holds, see PagedRows.tensors; empty if it holds nothing."""
        if self._content.columns == 0:
            return {}
        return self._content.tensors(self.next_rows(self._held_rows).tolist())

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` of a cache of the same model returned; raises as PagedRows does."""
        self.reset()
        self._content.restore(tensors)
        self._batch = len(tensors["slots"])

    def _keep(self, length: int) -> None:
        self._content.crop(length)
