"""Names under which the backend keeps a layer's weights between its calls."""

from __future__ import annotations

import uuid

import torch

__all__ = ["KeptWeights"]


class KeptWeights:
    """The name of a layer's weights; another one once they have changed.

    A change is another tensor, or one that torch counts: in place, by an optimizer or
    load_state_dict. A copy of it, or what is unpickled, has no name yet.
    """

    def __init__(self) -> None:
        self._of: tuple[torch.Tensor, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._name = ""

    def name(self, *weights: torch.Tensor) -> str:
        """Returns the name for these weights."""
        versions = tuple(weight._version for weight in weights)
        # Held, so that no other tensor can get their addresses.
        same = len(self._of) == len(weights) and all(map(_are_one, self._of, weights))
        if not same or versions != self._versions:
            self._of = tuple(weight.detach() for weight in weights)
            self._versions, self._name = versions, str(uuid.uuid4())
        return self._name

    def __reduce__(self) -> tuple[type[KeptWeights], tuple[()]]:
        return KeptWeights, ()


def _are_one(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.data_ptr() == second.data_ptr() and first.dtype == second.dtype
