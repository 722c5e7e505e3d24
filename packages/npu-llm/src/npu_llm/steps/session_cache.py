"""The KV cache of the dynamic pipeline: a handle on one session of the program.

Keys and values stay inside the program; the handle knows how many there are, and which count.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from npu_llm.errors import OptionError
from npu_llm.steps.slots import Relocation, Slots
from npu_llm.steps.static_layout import KEY_POSITIONS
from npu_llm.steps.step_cache import StepCache
from npu_runtime import Session

__all__ = ["SessionCache"]


class SessionCache(StepCache):
    """The cache of one generation, inside the program.

    Attributes:
        session: the program's session that holds keys and values; see npu_runtime.Program.session.
    """

    def __init__(
        self,
        session: Session,
        *,
        relocation: Relocation = None,
        constants: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._constants = constants or {}
        self.session = session
        self._names = tuple(port.name for port in session.program.inputs)
        self._relocation: Relocation = relocation
        self._slots = Slots()
        self._is_broken = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many tokens the cache holds, including padding."""
        return self._slots.length

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step; see StepCache.step.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [cache-broken] after a step that was interrupted.
        """
        self._check_sound()
        batch, tokens = values["input_ids"].shape
        inputs = {
            **values,
            **self._constants,
            "attention_mask": self._slots.mask(values["attention_mask"], self._relocation),
            KEY_POSITIONS: self._slots.key_positions(tokens),
            "beam_idx": self.next_rows(batch),
        }
        self._is_broken = True
        (logits,) = self.session.run([inputs[name] for name in self._names], output_device=device)
        self._batch = batch
        self._slots.append(tokens)
        self._rows = None
        self._is_broken = False
        return logits

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the cache's contents are unknown."""
        return self._is_broken

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be forgotten without the others.

        They cannot if the model numbers its tokens by place in a way that no input changes, or
        after a step that was interrupted.
        """
        return self._relocation is not None and not self._is_broken

    @property
    def hidden_tokens(self) -> int:
        """How many places forgotten tokens still take; a new cache has none."""
        return self._slots.hidden

    def reset(self) -> None:
        """Forgets everything."""
        self.session.reset()
        super().reset()
        self._slots = Slots()
        self._is_broken = False

    def _keep(self, length: int) -> None:
        self._slots.crop(length)

    def _check_sound(self) -> None:
        """Raises OptionError [cache-broken] after a step that was interrupted."""
        if self._is_broken:
            raise OptionError(
                f"{type(self).__name__}: must not be used after a step was interrupted, since its "
                "contents are unknown; got another step. Start from a new cache, or reset() this "
                "one.",
                code="cache-broken",
            )
