"""What a model has read of a session: a cache, and which tokens it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from npu_llm.prompts.chat_prompt import common_length

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM
    from npu_llm.kv_cache.cache import StepCache

__all__ = ["ReadTokens"]

# Tokens that a cache has forgotten may still take memory and time. Once they outnumber both this
# and the tokens that are kept, reading those again into a new cache costs less.
_HIDDEN_TOKENS = 256


class ReadTokens:
    """A cache that is reused as far as the next prompt begins like the last one.

    Attributes:
        tokens: the ids that the cache holds.
        cache: for `past_key_values`; None before the first `prepare`, and after a step that was
            interrupted.
    """

    def __init__(self, model: NPUModelForCausalLM) -> None:
        self.tokens: list[int] = []
        self.cache: StepCache | None = None
        self._model = model

    def prepare(self, prompt: Sequence[int]) -> tuple[StepCache, int]:
        """Makes the cache hold a prefix of a prompt, and not all of it.

        Returns:
            The cache, and how many tokens it holds.
        """
        if self.cache is not None and not self._model.continues(self.cache):
            self.forget()  # other adapters are in use
        # The last token is always read: the model is asked for what follows it.
        self._shorten(min(common_length(self.tokens, prompt), len(prompt) - 1))
        hidden = 0 if self.cache is None else self.cache.hidden_tokens
        if hidden > max(_HIDDEN_TOKENS, len(self.tokens)):
            self.forget()
        if self.cache is None:
            self.cache = self._model.new_cache()
        return self.cache, len(self.tokens)

    def settle(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Notes what the cache holds after an answer, complete or interrupted."""
        if self.cache is None or self.cache.is_broken:
            self.forget()
            return
        # The answer's last token has not been read; a wrong guess may be in its place.
        known = min(self.cache.get_seq_length(), len(prompt) + max(len(answer) - 1, 0))
        self.tokens = [*prompt, *answer][:known]
        self._shorten(known)

    def forget(self) -> None:
        """Drops the cache."""
        self.tokens, self.cache = [], None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the cache's contents; empty if it cannot be copied or holds nothing."""
        return self.cache.tensors() if self.cache is not None and self.tokens else {}

    def restore(self, tokens: Sequence[int], tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores tokens and contents; without contents the model reads the tokens in one go."""
        self.forget()
        if not tokens:
            return
        cache = self._model.new_cache()
        if tensors:
            cache.restore(tensors)
        else:
            self._model(torch.tensor([list(tokens)]), past_key_values=cache, logits_to_keep=1)
        self.tokens, self.cache = list(tokens), cache

    def _shorten(self, length: int) -> None:
        """Keeps the first tokens; drops the cache if it cannot be shortened."""
        if self.cache is None or length == self.cache.get_seq_length():
            return
        if length and self.cache.is_croppable:
            self.cache.crop(length)
            del self.tokens[length:]
        else:
            self.forget()
