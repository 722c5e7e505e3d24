"""Draws random graphs: inputs, then calls that fit what there is, then which values to return.

Each call is made on the CPU as it is drawn, so that the next knows dtypes, shapes and values. The
ops to draw from are in vocabulary.py. This module alone imports hypothesis.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from npu_compiler.suite.random_graphs.graph import (
    InputSpec,
    RandomGraph,
    Ref,
    Step,
    call,
    make_input,
    references,
)
from npu_compiler.suite.random_graphs.vocabulary import EXACT, OPS, Draft, Values, Vocable

__all__ = ["random_graphs"]

_DTYPES = (
    *("float32",) * 9, *("float16",) * 2, *("bfloat16",) * 2, *("int64",) * 3, *("bool",) * 2,
    "int32", "float64", "uint8",
)  # fmt: skip
_SHAPES = (
    (2, 3), (4,), (2, 3, 4), (3, 4), (4, 4), (1, 4), (2, 1, 4), (), (1,), (2, 3, 6, 6),
    (1, 4, 5, 5), (2, 4, 3), (3, 1), (2, 2, 3, 4), (6,), (2, 4, 4, 4), (1, 1),
)  # fmt: skip
_LARGEST = 1e4
_CELLS = 4096
_ATTEMPTS = 8


class _Drawn(Values):
    """The values so far, with choices made by hypothesis."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.specs: list[InputSpec] = []
        self.steps: list[Step] = []
        self.tensors: list[Any] = []
        self.exact: list[bool] = []

    def choose(self, options: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(list(options)))

    def add_input(self) -> None:
        shape = self.choose(_SHAPES)
        dtype = self.choose(_DTYPES)
        is_turned = len(shape) > 1 and self.choose((False, False, False, True))
        spec = InputSpec(
            shape=shape,
            dtype=dtype,
            fill=self.choose(("quarters", "quarters", "normal", "indices")),
            seed=self.choose(range(50)),
            frozen=self.choose((False, False, True)),
            order=tuple(reversed(range(len(shape)))) if is_turned else (),
        )
        self.specs.append(spec)
        self.tensors.append(make_input(spec))
        self.exact.append(spec.fill != "normal")

    def add_step(self, vocable: Vocable) -> bool:
        """Draws one call of an op and makes it; whether there was one that fits."""
        draft = vocable.draft(self)
        if draft is None:
            return False
        return self._make(draft, vocable.traits)

    def _make(self, draft: Draft, traits: frozenset[str]) -> bool:
        step = Step(draft.target, draft.arguments, draft.keywords)
        used = list(references([list(step.arguments), step.keywords]))
        if "exact only" in traits and not all(self.exact[index] for index in used):
            return False
        if step.target.endswith("_") and _overlaps(self.tensors[used[0]]):
            return False
        # In-place calls change what is there: try on copies that share memory as these do.
        kept = [t.clone() if isinstance(t, torch.Tensor) else None for t in self.tensors]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = call(step, self.tensors)
        except (RuntimeError, IndexError, ValueError, TypeError):
            # A half type that the CPU has no kernel for, shapes that do not go together.
            self._restore(kept)
            return False
        if not _is_tame([result, *self.tensors]):
            self._restore(kept)
            return False
        is_exact = EXACT in traits and all(self.exact[index] for index in used)
        if step.target.endswith("_") and isinstance(result, torch.Tensor):
            self._spoil(result, is_exact)
        self.steps.append(step)
        self.tensors.append(result)
        self.exact.append(is_exact and _is_exact(result))
        if isinstance(result, (tuple, list)):
            for part in range(min(len(result), 3)):
                if isinstance(result[part], torch.Tensor):
                    index = len(self.tensors) - 1 - part
                    self.steps.append(Step("operator.getitem", (Ref(index), part)))
                    self.tensors.append(result[part])
                    self.exact.append(is_exact and _is_exact(result[part]))
        return True

    def _restore(self, kept: list[torch.Tensor | None]) -> None:
        for tensor, copy in zip(self.tensors, kept, strict=True):
            if copy is not None and not _same(tensor, copy):
                tensor.copy_(copy)

    def _spoil(self, written: torch.Tensor, is_exact: bool) -> None:
        """A write makes all that shares its memory as exact as what was written."""
        pointer = written.untyped_storage().data_ptr()
        for index, tensor in enumerate(self.tensors):
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.untyped_storage().data_ptr() == pointer:
                self.exact[index] = self.exact[index] and is_exact and _is_exact(tensor)

    def outputs(self) -> tuple[int, ...]:
        """What no other call takes, so that nothing is dead, and perhaps more beside it."""
        used = {
            index
            for step in self.steps
            for index in references([list(step.arguments), step.keywords])
        }
        first = len(self.specs)
        found = [i for i in range(first, len(self.tensors)) if self._is_tensor(i)]
        last = [index for index in found if index not in used] or found[-1:]
        more = [self.choose(found) for _ in range(self.choose((0, 0, 0, 1, 2)))]
        return tuple(dict.fromkeys([*last, *more]))

    def _is_tensor(self, index: int) -> bool:
        return isinstance(self.tensors[index], torch.Tensor)


@st.composite
def random_graphs(draw: Any) -> RandomGraph:
    """A strategy of graphs with one to four inputs and up to twelve calls."""
    drawn = _Drawn(draw)
    for _ in range(drawn.choose((1, 2, 2, 3, 4))):
        drawn.add_input()
    wanted = drawn.choose((4, 3, 5, 6, 7, 8, 9, 10, 12, 2))
    for _ in range(wanted * _ATTEMPTS):
        if len(drawn.steps) >= wanted:
            break
        drawn.add_step(drawn.choose(OPS))
    if not drawn.steps:
        first = next(iter(range(len(drawn.specs))))
        drawn._make(Draft("torch.mul", (Ref(first), Ref(first))), frozenset())
    if not drawn.steps:
        drawn._make(Draft("torch.zeros_like", (Ref(0),)), frozenset())
    return RandomGraph(tuple(drawn.specs), tuple(drawn.steps), drawn.outputs())


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as in an expanded tensor.

    torch's functionalization adds up what is written to one element there (torch 2.13).
    """
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in pairs)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left, right)


def _is_tame(values: Sequence[Any]) -> bool:
    """Whether all numbers are finite and small, so that results can be compared."""
    for value in values:
        parts = value if isinstance(value, (tuple, list)) else [value]
        for part in parts:
            if not isinstance(part, torch.Tensor):
                return False
            if part.numel() == 0 or part.numel() > _CELLS:
                return False
            wide = part.to(torch.float64)
            if not bool(wide.isfinite().all()) or float(wide.abs().max()) > _LARGEST:
                return False
    return True


def _is_exact(value: Any) -> bool:
    """Whether each dtype holds these numbers without rounding."""
    if not isinstance(value, torch.Tensor):
        return False
    if not value.is_floating_point():
        return bool((value.to(torch.int64).abs() <= 128).all())
    wide = value.to(torch.float64) * 4
    return bool((wide == wide.round()).all()) and bool((wide.abs() <= 64).all())
