"""Runs a step's program on tokens with known logits from torch, in each way that steps run.

These are a first chunk with as many tokens as heads, single tokens, several tokens after others,
repeated tokens after a crop, and a padded batch with swapped rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from npu_compiler.verification.comparison import Difference, compare
from npu_llm.kv_cache.cache import Relocation, StepCache, step_inputs
from npu_llm.kv_cache.static import static_cache
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.kv_cache.step_weights import StepWeights
from npu_llm.verification.reference import TorchReference
from npu_llm.verification.verifier import Finding
from npu_runtime import Program

__all__ = ["OneProgram", "check_dynamic", "check_static"]

# Tolerance of a step's logits, as a multiple of the effect of rounding on torch's, or as this
# share. Measured: at most 1.13 times (SmolLM2, small models of several architectures; 2026-11-22).
_NORMS = 3.0
# With 8-bit activations, rounding moves some tokens ten times as far as others, and different ones
# in each set of kernels. There every token may move by this share of the farthest, and all together
# by _NORMS times their rounding. SmolLM2 as K-quants of 4 and 5 bits, in 5 sets of kernels, for 6
# texts: one token by up to 4.5 times its own, all by 0.2 to 1.3 times; 14 file types against the
# reference of a known decoder, all by 0.5 to 1.9 times; with two blocks of 16 rows of one weight
# exchanged, all by 6 to 11 times (2026-11-28).
_OF_THE_FARTHEST = 5 / 6
_SHARES = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}
# The padded batch: tokens of its second row, and the padding before them.
_SHORT, _PADDING = 5, 2


@dataclass(frozen=True)
class _Step:
    """Logits (rows, vocabulary) of a step, and the matching rows of the reference."""

    name: str
    logits: torch.Tensor
    rows: tuple[int, ...]


def check_dynamic(
    new_cache: Callable[[], StepCache],
    reference: TorchReference,
    *,
    has_positions: bool,
) -> Finding | None:
    """Runs a dynamic pipeline's program with its caches; returns the first wrong step.

    Args:
        new_cache: creates an empty cache.
        reference: torch's results, with the rounding of the program's arithmetic.
        has_positions: whether positions are an input, so that padding before a row has no effect.
    """
    return _judge(_dynamic_steps(new_cache, reference, has_positions), reference)


def check_static(
    program: Program,
    layout: StaticLayout,
    sizes: StepSizes,
    reference: TorchReference,
    *,
    relocation: Relocation,
    weights: StepWeights | None = None,
) -> Finding | None:
    """Runs one program of a static pipeline; returns the first wrong step.

    Args:
        program: the program.
        layout: its ports.
        sizes: its sizes.
        reference: see check_dynamic.
        relocation: how it identifies the valid slots.
        weights: inputs besides tokens, masks and caches; None for none.
    """
    only = OneProgram(program, layout, sizes, weights)
    slots = (sizes.capacity or sizes.tokens) if layout.groups else None
    chunks = StaticSizes(slots, chunks=(sizes.tokens,), smallest=slots or 0)
    given = [{name: torch.zeros(shape) for name, shape in layout.given.items()}]
    cache = static_cache(only, chunks, relocation, given)
    return _judge(_static_steps(cache, layout, sizes, reference), reference)


class OneProgram:
    """A stand-in for a model's programs while one of them is checked."""

    def __init__(
        self,
        program: Program,
        layout: StaticLayout,
        sizes: StepSizes,
        weights: StepWeights | None = None,
    ) -> None:
        self.layout = layout
        self._weights = weights or StepWeights()
        self._program = program
        self._sizes = sizes

    def get(self, sizes: StepSizes) -> Program:
        """Returns the program."""
        assert sizes == self._sizes, "steps are split to fit this program"
        return self._program

    def weights(self, sizes: StepSizes) -> StepWeights:
        """Returns the inputs besides tokens, masks and caches."""
        return self._weights


class _Reader:
    """Feeds the sequence to a cache in chunks."""

    def __init__(self, cache: StepCache, reference: TorchReference) -> None:
        self.cache = cache
        self._reference = reference
        self._vocabulary = reference.logits.shape[1]

    @property
    def left(self) -> int:
        """The number of unread tokens."""
        return len(self._reference.ids) - self.cache.get_seq_length()

    def read(self, count: int, name: str, *, kept: int | None = None) -> _Step:
        """Reads the next tokens.

        Args:
            count: maximum number of tokens.
            name: the step's name; `{count}` and `{past}` are replaced by the numbers.
            kept: 1 for the logits of one token; None for all known ones.
        """
        past = self.cache.get_seq_length()
        count = min(count, self.left)
        known = [row for row in self._reference.rows if past <= row < past + count]
        known = known[-1:] if kept == 1 else known
        asked = [row - past for row in known] or [count - 1]
        if kept is not None and kept > 1 and len(asked) == 1 and count > 1:
            asked = [asked[0], *(index for index in range(2) if index != asked[0])][:2]
        logits = self._step(self._reference.ids[None, past : past + count], asked)
        words = name.format(count=_tokens(count), past=_tokens(past))
        return _Step(words, logits[0, : len(known)], tuple(known))

    def _step(self, ids: torch.Tensor, kept: Sequence[int]) -> torch.Tensor:
        values = step_inputs(
            ids,
            attention_mask=None,
            position_ids=None,
            logits_to_keep=torch.tensor(kept),
            past=self.cache.get_seq_length(),
            vocabulary=self._vocabulary,
        )
        return self.cache.step(values, "cpu")


def _dynamic_steps(
    new_cache: Callable[[], StepCache], reference: TorchReference, has_positions: bool
) -> Iterator[_Step]:
    reader = _Reader(new_cache(), reference)
    yield reader.read(reference.heads, "a prompt of {count}, as many as heads")
    for _ in range(min(3, reader.left)):
        yield reader.read(1, "{count} after {past}")
    if reader.left:
        yield reader.read(3, "{count} after {past}")
    if reader.cache.is_croppable and reader.cache.get_seq_length() > 2:
        reader.cache.crop(-2)
        yield reader.read(2, "{count} after {past}, in place of cropped ones")
    reader = _Reader(new_cache(), reference)
    yield reader.read(reference.kv_heads, "a prompt of {count}, as many as heads of keys")
    if reader.left:
        yield reader.read(reference.heads, "{count} after {past}, as many as heads")
    if has_positions and len(reference.ids) > _SHORT + _PADDING:
        yield from _padded_steps(new_cache(), reference)


def _padded_steps(cache: StepCache, reference: TorchReference) -> Iterator[_Step]:
    """Runs a batch of a whole row and a padded one, then swaps the rows."""
    ids, vocabulary = reference.ids, reference.logits.shape[1]
    length = _SHORT + _PADDING
    rows = torch.stack([ids[:length], torch.cat([ids[:_PADDING], ids[:_SHORT]])])
    mask = torch.ones_like(rows)
    mask[1, :_PADDING] = 0

    def run(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values = step_inputs(
            ids,
            attention_mask=mask,
            position_ids=None,
            logits_to_keep=1,
            past=cache.get_seq_length(),
            vocabulary=vocabulary,
        )
        return cache.step(values, "cpu")[:, 0]

    yield _Step("a padded batch", run(rows, mask), (length - 1, _SHORT - 1))
    cache.reorder_cache(torch.tensor([1, 0]))
    mask = torch.nn.functional.pad(mask.flip(0), (0, 1), value=1)
    following = torch.stack([ids[_SHORT : _SHORT + 1], ids[length : length + 1]])
    yield _Step("a padded batch with swapped rows", run(following, mask), (_SHORT, length))


def _static_steps(
    cache: StepCache, layout: StaticLayout, sizes: StepSizes, reference: TorchReference
) -> Iterator[_Step]:
    reader = _Reader(cache, reference)
    # A chunk that leaves tokens for later ones, which then have a past; programs of one token run
    # more.
    pieces = [1] * 8 if sizes.tokens == 1 else [max(reference.heads, 2), sizes.tokens, sizes.tokens]
    fewest = 1 if sizes.kept == 1 else 2
    if not sizes.capacity and layout.groups:
        pieces = pieces[-1:]  # it has no past
    room = sizes.capacity or len(reference.ids)
    for piece in pieces:
        count = min(piece, sizes.tokens, reader.left, room - cache.get_seq_length())
        if count < fewest:
            break
        yield reader.read(count, "{count} after {past}", kept=sizes.kept)
    if sizes.kept == 1 and (sizes.capacity or not layout.groups):
        cache.crop(-1)
        yield reader.read(1, "{count} after {past}, in place of a cropped one", kept=1)


def _judge(steps: Iterator[_Step], reference: TorchReference) -> Finding | None:
    """Returns the first step that differs.

    In mixtures of experts, rounding may change a token's experts: there the steps differ if most
    rows do. With 8-bit activations, steps may differ only together.
    """
    precision = reference.precision
    is_together = bool(reference.activation_group) and not reference.is_routed
    moved = _far_off(reference.rounded, reference.logits)
    samples = reference.rounded
    if is_together:
        more = (_OF_THE_FARTHEST * moved.max() / moved.clamp_min(_TINY)).clamp_min(1)
        samples = reference.logits + more[:, None] * (samples - reference.logits)
    place = {row: index for index, row in enumerate(reference.rows)}

    def differs(logits: torch.Tensor, rows: tuple[int, ...]) -> Difference | None:
        indices = [place[row] for row in rows]
        expected, rounded = reference.logits[indices], samples[indices]
        found = compare([logits], [expected], precision=precision, noisy=lambda: [[rounded]])
        return found or _differ_as_a_whole(logits, expected, rounded, precision)

    findings: list[Finding] = []
    off: list[torch.Tensor] = []
    ran: list[int] = []
    for step in steps:
        indices = [place[row] for row in step.rows]
        ran += indices
        off.append(_far_off(step.logits, reference.logits[indices]))
        difference = differs(step.logits, step.rows)
        if difference is None:
            continue
        if not reference.is_routed:
            return Finding(step.name, difference)
        found = (
            differs(one[None], (row,)) for one, row in zip(step.logits, step.rows, strict=True)
        )
        findings += [Finding(step.name, one) for one in found if one is not None]
    if not is_together:
        return findings[0] if 2 * len(findings) > len(ran) else None
    size, rounding = _mean_size(torch.cat(off)), _mean_size(moved[ran])
    allowed = max(_NORMS * rounding, _SHARES[precision])
    if size <= allowed:
        return None
    problem = f"is off by {size:.1%} of its norm, while rounding explains {allowed:.1%}"
    return Finding("all steps together", Difference(0, problem, size))


_TINY = torch.finfo(torch.float32).tiny


def _far_off(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Returns the distance of each row from the reference, as a share of its norm."""
    sizes: torch.Tensor = expected.norm(dim=-1).clamp_min(_TINY)
    distances: torch.Tensor = (logits - expected).norm(dim=-1)
    return distances / sizes


def _mean_size(shares: torch.Tensor) -> float:
    return float(shares.square().mean().sqrt())


def _differ_as_a_whole(
    logits: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor, precision: str
) -> Difference | None:
    """Compares logits by their norm, which is more sensitive than single elements.

    A wrong layer changes all logits a little, while rounding changes a few as much.
    """
    distance, size = float((logits - expected).norm()), float(expected.norm())
    allowed = max(_NORMS * float((rounded - expected).norm()), _SHARES[precision] * size)
    if distance <= allowed or size == 0:
        return None
    problem = f"is off by {distance / size:.1%} of its norm, while rounding explains"
    return Difference(0, f"{problem} {allowed / size:.1%}", distance / size)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
