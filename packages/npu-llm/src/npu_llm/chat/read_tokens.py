"""What a model has read of a session: a cache, and which tokens it holds.

The conversation that the tokens are of is npu_llm.chat.chat_session's work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from npu_llm.chat.chat_prompt import common_length

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM
    from npu_llm.steps.step_cache import StepCache

__all__ = ["ReadTokens"]

# Tokens that a cache has forgotten may go on taking memory and time. Where they outnumber both this
# and what is kept, reading that again into a new cache is the lesser cost.
_HIDDEN_TOKENS = 256


class ReadTokens:
    """A cache that is continued as far as the next prompt begins like the last.

    Attributes:
        tokens: ids that the cache holds.
        cache: for `past_key_values`; None before the first `prepare`, and after a step that was
            broken off.
    """

    def __init__(self, model: NPUModelForCausalLM) -> None:
        self.tokens: list[int] = []
        self.cache: StepCache | None = None
        self._model = model

    def prepare(self, prompt: Sequence[int]) -> tuple[StepCache, int]:
        """Has the cache hold a beginning of a prompt, and not all of it.

        Returns:
            The cache, and how many tokens it holds.
        """
        # The last token is read in any case: what follows it is what the model is asked for.
        self._shorten(min(common_length(self.tokens, prompt), len(prompt) - 1))
        hidden = 0 if self.cache is None else self.cache.hidden_tokens
        if hidden > max(_HIDDEN_TOKENS, len(self.tokens)):
            self.forget()
        if self.cache is None:
            self.cache = self._model.new_cache()
        return self.cache, len(self.tokens)

    def settle(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Notes what the cache holds after an answer, whole or broken off."""
        if self.cache is None or self.cache.is_broken:
            self.forget()
            return
        # The answer's last token was not read yet; in its place may stand a guess that was wrong.
        known = min(self.cache.get_seq_length(), len(prompt) + max(len(answer) - 1, 0))
        self.tokens = [*prompt, *answer][:known]
        self._shorten(known)

    def forget(self) -> None:
        """Gives the cache up."""
        self.tokens, self.cache = [], None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The cache's contents; empty where it cannot be copied or holds nothing."""
        return self.cache.tensors() if self.cache is not None and self.tokens else {}

    def restore(self, tokens: Sequence[int], tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes up tokens and contents; without these, the model reads the tokens, in one go."""
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
        """Keeps the first tokens; none where the cache cannot be shortened."""
        if self.cache is None or length == self.cache.get_seq_length():
            return
        if length and self.cache.is_croppable:
            self.cache.crop(length)
            del self.tokens[length:]
        else:
            self.forget()
